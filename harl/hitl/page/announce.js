// What a screen reader says: at most one message a second, the newest of those that waited.

const APART = 1000;

export class Announcer {
  constructor(element) {
    this.element = element;
    this.waiting = null;
    this.timer = null;
  }

  say(text) {
    this.waiting = text;
    if (this.timer === null) this.speak();
  }

  speak() {
    // Said again, the same text has to be another one, or nothing changes and nothing is heard.
    const again = this.waiting === this.element.textContent;
    this.element.textContent = again ? `${this.waiting}\u00a0` : this.waiting;
    this.waiting = null;
    this.timer = setTimeout(() => {
      this.timer = null;
      if (this.waiting !== null) this.speak();
    }, APART);
  }
}

// A short note at the top, the newest first, also spoken; it covers neither the picture nor a button for long.
export function toast(box, announcer, text, level = "info") {
  const note = document.createElement("p");
  note.className = `toast ${level}`;
  note.textContent = text;
  box.prepend(note);
  while (box.children.length > 2) box.lastChild.remove();
  setTimeout(() => note.remove(), level === "info" ? 4000 : 8000);
  announcer.say(text);
}
