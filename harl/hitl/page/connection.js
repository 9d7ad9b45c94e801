// The socket: says hello, comes back by itself after a loss, and measures how long messages take.

import { decodeFrame } from "./wire.js";

const PROTOCOL = "marl-hitl.v1";
const FIRST_DELAY = 500;
const LONGEST_DELAY = 8000;
const PING_EVERY = 1000;
const PINGS = 20;
const SILENCE = 6000; // without an answer to pings for so long, a connection is dead whatever the system says

// Closed for good: coming back by itself would not help, or would fight with another window.
const FINAL = {
  1008: "refused",
  4001: "replaced",
  4002: "idle",
  4003: "finished",
};

// Events, all CustomEvents with the data in `detail`: link ("connecting", "open", "lost", "ended"), welcome, frame,
// message (any other JSON), latency.
export class Connection extends EventTarget {
  constructor(url) {
    super();
    this.url = url;
    this.hello = null;
    this.resume = null;
    this.socket = null;
    this.attempt = 0;
    this.wanted = false;
    this.failure = null; // the last fatal error, to explain a close
    this.rtts = [];
    this.retryAt = 0;
    this.timer = null;
  }

  // `hello()` gives the fields of the hello, asked anew for every attempt.
  open(hello) {
    this.hello = hello;
    this.wanted = true;
    this.attempt = 0;
    this.failure = null;
    clearTimeout(this.timer);
    this.drop();
    this.connect();
  }

  close() {
    this.wanted = false;
    clearTimeout(this.timer);
    this.drop();
  }

  drop() {
    const old = this.socket;
    this.socket = null;
    if (old) old.close(1000);
  }

  get ready() {
    return this.socket !== null && this.socket.welcomed === true && this.socket.readyState === WebSocket.OPEN;
  }

  send(type, fields = {}) {
    if (!this.ready) return false;
    this.socket.send(JSON.stringify({ v: 1, type, ...fields }));
    return true;
  }

  connect() {
    this.tell("link", { state: "connecting", attempt: this.attempt });
    const socket = new WebSocket(this.url, [PROTOCOL]);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    socket.addEventListener("open", () => {
      const hello = { v: 1, type: "hello", client: "page/1.0", ...this.hello() };
      if (this.resume) hello.resume = this.resume;
      socket.send(JSON.stringify(hello));
    });
    socket.addEventListener("message", (event) => {
      if (socket === this.socket) this.receive(socket, event.data);
    });
    socket.addEventListener("close", (event) => {
      if (socket === this.socket) this.closed(event);
    });
  }

  receive(socket, data) {
    if (typeof data !== "string") {
      this.tell("frame", decodeFrame(data));
      return;
    }
    const message = JSON.parse(data);
    if (message.type === "welcome") {
      this.resume = message.resume ?? null;
      this.attempt = 0;
      this.failure = null;
      socket.welcomed = true;
      this.heard = performance.now();
      this.startPinging(socket);
      this.tell("link", { state: "open" });
      this.tell("welcome", message);
    } else if (message.type === "pong") {
      this.pong(message);
    } else {
      if (message.type === "error" && message.fatal) this.failure = message;
      if (message.type === "bye") this.failure = { code: "bye", text: message.reason };
      this.tell("message", message);
    }
  }

  closed(event) {
    this.socket = null;
    this.rtts = [];
    if (this.failure?.code === "resume") this.resume = null;
    if (!this.wanted) return;
    const why = FINAL[event.code];
    if (why) {
      this.wanted = false;
      if (why !== "idle") this.resume = null;
      this.tell("link", { state: "ended", why, text: this.failure?.text ?? event.reason });
      return;
    }
    const limit = Math.min(LONGEST_DELAY, FIRST_DELAY * 2 ** this.attempt);
    const delay = limit * (0.75 + 0.25 * Math.random()); // so that not everybody comes back at the same moment
    this.attempt += 1;
    this.retryAt = performance.now() + delay;
    this.tell("link", { state: "lost", delay, attempt: this.attempt });
    this.timer = setTimeout(() => this.connect(), delay);
  }

  startPinging(socket) {
    const ping = () => {
      if (socket !== this.socket) return;
      if (performance.now() - this.heard > SILENCE && !document.hidden) {
        socket.close();
        this.closed({ code: 1006, reason: "nothing heard" });
        return;
      }
      const rtt = this.latency();
      this.send("ping", rtt === null ? { t: performance.now() } : { t: performance.now(), rtt: Math.round(rtt * 10) / 10 });
      setTimeout(ping, PING_EVERY);
    };
    ping();
  }

  pong(message) {
    this.heard = performance.now();
    this.rtts.push(this.heard - message.t);
    if (this.rtts.length > PINGS) this.rtts.shift();
    this.tell("latency", this.latency());
  }

  // Median round-trip time of the last pings in milliseconds, or null.
  latency() {
    if (this.rtts.length === 0) return null;
    const sorted = [...this.rtts].sort((a, b) => a - b);
    return sorted[sorted.length >> 1];
  }

  tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}
