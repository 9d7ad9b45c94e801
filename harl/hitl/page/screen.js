// Keeps what the page shows up to date: banner, readings, agents, and the picture in words.

import { Agents, moves, setText, shownActions } from "./agents.js";
import { bannerFor, latencyLevel, Readouts, recordingFor } from "./hud.js";
import { commandCodes, keyName } from "./keys.js";
import { settings } from "./settings.js";

const REFRESH = 100; // milliseconds between two looks at the readings: faster than that nobody can read them
const DESCRIBE = 1000;
const VEILS = { open: "Waiting for the first picture", lost: "Connection lost", ended: "Disconnected" };
const fingers = matchMedia("(pointer: coarse)");

export class Screen {
  // `actions`: `choose(agent)` and `revoke(agent)`.
  constructor(find, parts, actions) {
    Object.assign(this, parts); // room, connection, takeover, view, announcer
    this.find = find;
    this.readouts = new Readouts(find("readouts"));
    this.agents = new Agents(find("agents"), actions.choose, actions.revoke);
    this.keyToPicture = null; // milliseconds from the press of a key to the picture that shows what it did
    this.describedAt = 0;
    setInterval(() => this.refresh(), REFRESH);
  }

  // Somebody has come in: what stays the same while they are here.
  enter(welcome) {
    const { find, room } = this;
    document.body.dataset.role = welcome.role;
    document.title = `${welcome.title} · harl`;
    setText(find("title"), welcome.title);
    setText(find("purpose"), welcome.purpose === "train" ? "Training" : "Evaluation: nothing is learned");
    find("purpose").hidden = false;
    setText(find("who"), `${welcome.name} · ${welcome.role}`);
    find("who").hidden = false;
    find("env-choice").hidden = welcome.envs !== "all" || welcome.num_envs < 2;
    find("env").max = welcome.num_envs - 1;
    find("env").value = welcome.env;
    find("drive-block").hidden = !room.may("controller");
    find("feedback-block").hidden = !room.may("trainer");
    const names = [...room.agents.keys()];
    find("feedback-target").replaceChildren(new Option("the team", "team"), ...names.map((name) => new Option(name, name)));
    this.agents.build(room.agents, room.may("controller"), room.may("admin"));
    this.keyLabels();
  }

  keyLabels() {
    for (const id of ["take", "praise", "blame", "undo"]) setText(this.find(`${id}-key`), keyName(commandCodes(id)[0]));
    setText(this.find("play-help"), this.room.may("controller")
      ? `While this area has the focus: ${this.takeKey()} takes over, Escape gives back, Page Down and Page Up choose the agent. Tab leaves the area.`
      : "You watch. The scene in words is below the picture.");
  }

  takeKey() {
    return fingers.matches ? "the button" : keyName(commandCodes("take")[0]);
  }

  // A frame or tick comes onto the screen; the list of agents is of the same one.
  drawn({ meta }) {
    const { takeover } = this;
    const seq = meta.applied?.[takeover.lease ?? this.room.mine];
    if (seq !== undefined) this.keyToPicture = takeover.shown(seq) ?? this.keyToPicture;
    this.listAgents();
  }

  listAgents() {
    const { room, takeover } = this;
    this.agents.update(room.agents, room.may("controller") ? room.mine : null, room.me(), takeover.lease, room.frame);
  }

  recording() {
    const { on, text } = recordingFor(this.room);
    this.find("rec").dataset.on = String(on);
    setText(this.find("rec-text"), text);
  }

  // Agents as the picture shows them in a frame.
  crew(frame) {
    const { room, takeover } = this;
    const actions = shownActions(frame);
    return new Map([...room.agents.values()].map((agent) => {
      const me = takeover.lease === agent.name;
      return [agent.name, {
        colour: agent.colour,
        index: agent.index,
        mine: agent.name === room.mine && room.may("controller"),
        me,
        driver: me ? room.me() : agent.driver,
        moves: moves(agent, actions[agent.name]),
      }];
    }));
  }

  refresh() {
    const { find, room, takeover } = this;
    const agent = room.may("controller") ? room.mine : null;
    const latency = this.connection.latency();
    const { frame, pace, link } = room;
    this.readouts.update({ frame, agent, pace, fps: this.view.fps(), latency, keyToPicture: this.keyToPicture });
    this.listAgents();
    this.recording();
    this.banner(agent);
    this.link(latency);
    this.takeButton();
    find("veil").hidden = link.state === "open" && frame !== null;
    setText(find("veil"), VEILS[link.state] ?? "Connecting");
    if (performance.now() - this.describedAt > DESCRIBE) this.describe();
  }

  banner(agent) {
    const { find, room, takeover } = this;
    const shown = bannerFor({
      link: room.link,
      agents: room.agents,
      agent,
      me: room.me(),
      driving: takeover.lease,
      idle: takeover.idle(),
      idleSeconds: room.idleSeconds(),
      paused: room.pace.state === "paused",
      takeKey: this.takeKey(),
      takeover: settings.get("takeover"),
      listens: fingers.matches || document.activeElement === find("play"),
    });
    find("banner").dataset.state = shown.state;
    setText(find("banner-hint"), shown.hint);
    if (find("banner-text").textContent === shown.text) return;
    setText(find("banner-text"), shown.text);
    this.announcer.say(shown.text);
  }

  link(latency) {
    const { state } = this.room.link;
    const [level, word] = latencyLevel(latency);
    const measured = state === "open" && latency !== null;
    const open = measured ? `${latency.toFixed(0)} ms` : "Connected";
    this.find("link").dataset.level = state === "open" ? level : "poor";
    setText(this.find("link-text"), { open, lost: "Reconnecting", ended: "Disconnected" }[state] ?? "Connecting");
    setText(this.find("link-word"), measured ? `, ${word.split(":")[0]}` : "");
  }

  takeButton() {
    const { lease, asked } = this.takeover;
    const take = this.find("take");
    take.setAttribute("aria-pressed", String(lease !== null));
    take.dataset.state = lease !== null ? "on" : asked !== null ? "asked" : "off";
    const idle = settings.get("takeover") === "sticky" ? "Take over" : "Hold to drive";
    setText(this.find("take-text"), lease !== null ? `Driving ${lease}` : idle);
  }

  describe() {
    this.describedAt = performance.now();
    const { find } = this;
    const { frame } = this.room;
    const parts = this.view.describe();
    const where = frame ? `Episode ${frame.ep}, step ${frame.step}. ` : "";
    find("canvas").setAttribute("aria-label", where + (parts?.join("; ") ?? (frame ? "A rendered picture" : "No picture yet")));
    if (!find("words").open) return;
    const list = document.createElement("ul");
    for (const part of parts ?? ["This picture is rendered by the run and has no words."]) {
      const item = document.createElement("li");
      item.textContent = part;
      list.append(item);
    }
    find("words-body").replaceChildren(list);
  }
}
