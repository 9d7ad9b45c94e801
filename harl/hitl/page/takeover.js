// Who drives: asks for an agent while it is wanted, keeps saying what is held, and gives it back.

import { combine } from "./held.js";
import { settings } from "./settings.js";

const REPEAT = 66; // milliseconds between two reports of what is held

// `room` has `connection`, `held`, `pace`, `agent()`, `seen()`, `me()`, `nextSeq()` and `idleSeconds()`.
// Events: change; refused (detail: message of the room); lost (detail: message of the room).
export class Takeover extends EventTarget {
  constructor(room) {
    super();
    this.room = room;
    this.holds = new Set(); // what holds the agent: key, button, gamepad
    this.sticky = false;
    this.lease = null; // name of the agent that is mine
    this.asked = null; // name of the agent that I have asked for
    this.barred = false; // refused or taken away: not asked for again before everything was let go
    this.tap = null; // an action pressed before it could be sent
    this.blind = false; // what is on the screen has flown by since: no action yet
    this.touched = performance.now(); // when the person last did something
    this.timer = null;
    this.sent = new Map(); // seq → when, for actions whose effect has not been shown yet
    room.held.addEventListener("change", () => {
      this.touched = performance.now();
      this.update();
      if (this.asked || this.blind) this.tap = this.action() ?? this.tap;
      this.say();
    });
    settings.addEventListener("change", (event) => { if (event.detail === "takeover") this.giveBack(); });
  }

  get mode() {
    return settings.get("takeover");
  }

  get wanted() {
    if (this.mode === "sticky") return this.sticky;
    return this.holds.size > 0 || (this.mode === "any" && this.room.held.size > 0);
  }

  get driving() {
    return this.lease !== null;
  }

  // The takeover key, button or gamepad button goes down or up.
  hold(source, down) {
    this.touched = performance.now();
    if (this.mode === "sticky") {
      if (down) this.sticky = !this.sticky;
    } else if (down) this.holds.add(source);
    else this.holds.delete(source);
    this.update();
  }

  // Give the agent back, whatever is held.
  giveBack() {
    this.holds.clear();
    this.sticky = false;
    this.barred = this.mode === "any" && this.room.held.size > 0;
    this.letGo();
    this.dispatchEvent(new Event("change"));
  }

  update() {
    if (!this.wanted) {
      this.barred = false;
      this.letGo();
    } else if (!this.barred && !this.lease && !this.asked) {
      const agent = this.room.agent();
      const mode = this.mode === "sticky" ? "toggle" : "hold";
      if (agent && this.room.connection.send("control", { op: "request", agent: agent.name, mode })) this.asked = agent.name;
    }
    this.dispatchEvent(new Event("change"));
  }

  letGo() {
    if (!this.lease || (this.blind && this.tap !== null)) return; // a tap acts first
    // Of a hold it is enough to say that nothing is held; a tap that has not acted yet still acts then.
    if (this.mode !== "sticky") this.input(null, false);
    else this.room.connection.send("control", { op: "release", agent: this.lease });
    this.end();
  }

  end() {
    clearInterval(this.timer);
    this.lease = null;
    this.blind = false;
  }

  action() {
    const agent = this.room.agent();
    return agent ? combine(agent, this.room.held.controls(agent)) : null;
  }

  say() {
    if (this.lease) this.input(this.blind ? null : this.action(), true);
  }

  input(action, held) {
    const seq = this.room.nextSeq();
    const fields = { agent: this.lease, seq, seen: this.room.seen(), action, held, ttl_ms: this.room.leaseTtl() };
    this.room.connection.send("input", fields);
    const key = JSON.stringify([action, held]);
    const measured = held && action !== null && this.room.pace.state !== "paused"; // a pause is no latency
    if (key !== this.last && measured) this.sent.set(seq, performance.now());
    this.last = key;
  }

  // The run pauses: what has had no effect by now waits for it to go on.
  paused() {
    this.sent.clear();
  }

  // The room says who holds an agent.
  told(message) {
    const mine = message.holder === this.room.me();
    if (message.state === "granted") {
      if (mine && message.agent === this.asked) this.granted(message.agent);
    } else if (message.state === "denied") {
      if (message.agent !== this.asked) return;
      this.asked = null;
      this.tap = null;
      this.barred = true;
      this.sticky = false;
      this.dispatchEvent(new CustomEvent("refused", { detail: message }));
    } else if (message.agent === this.lease) { // released, expired or revoked
      this.end();
      this.barred = true;
      this.sticky = false;
      this.dispatchEvent(new CustomEvent("lost", { detail: message }));
    }
    this.dispatchEvent(new Event("change"));
  }

  granted(agent) {
    this.asked = null;
    this.lease = agent;
    this.last = "";
    this.touched = performance.now();
    this.blind = this.room.pace.state === "free";
    clearInterval(this.timer);
    this.timer = setInterval(() => this.tick(), REPEAT);
    if (this.blind) this.say();
    else this.begin();
  }

  // A frame comes onto the screen: the first one from after the grant is one that can be acted on.
  saw({ meta }) {
    if (!this.blind || (meta.driver && meta.driver[this.lease] !== this.room.me())) return;
    this.blind = false;
    this.begin();
  }

  begin() {
    const agent = this.lease;
    const tap = this.tap;
    this.tap = null;
    if (tap !== null && tap !== this.action()) this.input(tap, true);
    if (!this.wanted || this.room.agent()?.name !== agent) {
      if (this.mode === "sticky") this.room.connection.send("control", { op: "release", agent });
      else this.input(null, false);
      this.end();
      return;
    }
    if (settings.get("buzz")) navigator.vibrate?.(20);
    this.say();
  }

  tick() {
    if (this.mode === "sticky" && this.idle() > this.room.idleSeconds()) this.giveBack();
    else this.say();
  }

  // Seconds since the person last did anything while driving.
  idle() {
    return this.lease ? (performance.now() - this.touched) / 1000 : 0;
  }

  // A frame shows the effect of my inputs up to `seq`: milliseconds from the newest of them, or null.
  shown(seq) {
    let took = null;
    for (const [number, at] of this.sent) {
      if (number > seq) continue;
      took = performance.now() - at;
      this.sent.delete(number);
    }
    return took;
  }

  // The connection is gone: so is the lease.
  forget() {
    this.end();
    this.asked = null;
    this.tap = null;
    this.holds.clear();
    this.sticky = false;
    this.sent.clear();
    this.dispatchEvent(new Event("change"));
  }
}
