// Praise and blame: sends an event with what was on the screen, takes it back, and shows what it was credited to.

const SHOWN = 5;

export class Feedback {
  constructor(room, dom) {
    this.room = room;
    this.dom = dom;
    this.events = []; // {seq, value, agent, text, undone}, newest last
    dom.praise.addEventListener("click", () => this.give(1));
    dom.blame.addEventListener("click", () => this.give(-1));
    dom.undo.addEventListener("click", () => this.undo());
    this.draw();
  }

  give(value) {
    const agent = this.dom.target.value || "team";
    const seq = this.room.nextSeq();
    const now = performance.now();
    const shown = Math.max(0, now - this.room.shownAt());
    const fields = { agent, seq, value, seen: this.room.seen(), t_client_ms: round(now), shown_ms: round(shown) };
    if (!this.room.connection.send("feedback", fields)) return;
    this.events.push({ seq, value, agent, text: "sent", undone: false });
    flash(value > 0 ? this.dom.praise : this.dom.blame);
    this.room.announce(`${value > 0 ? "Good" : "Bad"} for ${agent === "team" ? "the team" : agent}`);
    this.draw();
  }

  undo() {
    const last = this.events.findLast((event) => !event.undone);
    if (!last || !this.room.connection.send("undo", { seq: last.seq })) return;
    last.undone = true;
    last.text = "taken back";
    this.room.announce("Feedback taken back");
    this.draw();
  }

  // The room says what became of an event.
  credited(message) {
    const event = this.events.find((each) => each.seq === message.seq);
    if (!event) return;
    if (message.undone || event.undone) event.text = "taken back";
    else event.text = where(message) + (message.late ? ", too late to learn from" : "");
    this.draw();
  }

  draw() {
    const { dom } = this;
    const kept = this.events.filter((event) => !event.undone);
    dom.praised.textContent = kept.filter((event) => event.value > 0).length;
    dom.blamed.textContent = kept.filter((event) => event.value < 0).length;
    dom.undo.disabled = kept.length === 0;
    dom.events.replaceChildren(...this.events.slice(-SHOWN).reverse().map((event) => {
      const item = document.createElement("li");
      item.className = `${event.value > 0 ? "good" : "bad"}${event.undone ? " undone" : ""}`;
      const sign = document.createElement("b");
      sign.textContent = event.value > 0 ? "+" : "−";
      sign.setAttribute("aria-label", event.value > 0 ? "Good" : "Bad");
      const agent = document.createElement("span");
      agent.textContent = event.agent;
      const text = document.createElement("span");
      text.className = "where";
      text.textContent = event.text;
      item.append(sign, agent, text);
      return item;
    }));
  }
}

// Credited steps in words: `steps` [[episode, first], [episode, last]], or `ago` [first, last] in steps before the event.
export function where({ steps, ago }) {
  if (steps?.length === 2 && steps.every(Array.isArray)) {
    const [[ep, low], [lastEp, high]] = steps;
    if (ep !== lastEp) return `episode ${ep} step ${low} to episode ${lastEp} step ${high}`;
    return low === high ? `episode ${ep}, step ${low}` : `episode ${ep}, steps ${low} to ${high}`;
  }
  if (ago?.length !== 2) return "no step that was shown";
  const [from, to] = [Math.max(...ago), Math.min(...ago)];
  return from === to ? `the step ${from} ago` : `steps ${from} to ${to} ago`;
}

function round(ms) {
  return Math.round(ms * 10) / 10;
}

function flash(button) {
  button.classList.remove("flash");
  void button.offsetWidth; // begin the animation anew
  button.classList.add("flash");
}
