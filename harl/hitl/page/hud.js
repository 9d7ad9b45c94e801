// Readings, and the banner that says who drives.

import { setText } from "./agents.js";

const GOOD = 60; // milliseconds of round trip that nobody notices
const MANY = 5; // tries to connect after which one may give up hope
const FAIR = 150; // above it, steering by sight fails

const READINGS = [
  ["episode", "Episode"], ["step", "Step"], ["reward", "Reward"], ["return", "Return"], ["sps", "Speed"],
  ["pace", "Pace"], ["fps", "Picture"], ["latency", "Latency"], ["rate", "By people"],
];

export class Readouts {
  constructor(list) {
    this.cells = new Map();
    for (const [id, label] of READINGS) {
      const cell = document.createElement("div");
      cell.className = "reading";
      cell.id = `reading-${id}`;
      const name = document.createElement("dt");
      name.textContent = label;
      const value = document.createElement("dd");
      const number = document.createElement("span");
      number.className = "value";
      number.textContent = "–";
      const unit = document.createElement("span");
      unit.className = "unit";
      value.append(number, unit);
      cell.append(name, value);
      list.append(cell);
      this.cells.set(id, { cell, number, unit });
    }
  }

  set(id, value, unit = "", level = "") {
    const { cell, number, unit: unitElement } = this.cells.get(id);
    setText(number, value);
    setText(unitElement, unit);
    cell.dataset.level = level;
  }

  update({ frame, agent, pace, fps, latency, keyToPicture }) {
    const meta = frame?.meta;
    if (meta) {
      this.set("episode", count(frame.ep));
      this.set("step", count(frame.step));
      const rewards = meta.reward ?? {};
      const returns = meta.return ?? {};
      this.set("reward", signed(agent ? rewards[agent] : sum(rewards)), agent ?? "team");
      this.set("return", signed(agent ? returns[agent] : sum(returns)), agent ? `team ${signed(sum(returns))}` : "team");
      this.set("sps", count(Math.round(meta.sps ?? 0)), "steps/s");
      this.set("rate", ((meta.rate ?? 0) * 100).toFixed(1), "% of steps");
    }
    this.set("pace", pace.state ?? "–", pace.speed && pace.speed !== 1 && pace.state === "realtime" ? `× ${pace.speed}` : "");
    this.set("fps", fps.toFixed(0), "frames/s");
    const [level, word] = latencyLevel(latency);
    const detail = keyToPicture === null ? word : `${word}\nkey to picture ${Math.round(keyToPicture)}`;
    this.set("latency", latency === null ? "–" : latency.toFixed(latency < 10 ? 1 : 0), latency === null ? "" : `ms, ${detail}`, level);
  }
}

export function latencyLevel(ms) {
  if (ms === null) return ["", ""];
  if (ms < GOOD) return ["good", "good"];
  return ms <= FAIR ? ["fair", "fair"] : ["poor", "slow: pause and step"];
}

// {on, text}: whether this person is recorded, in words that are true at any time.
export function recordingFor({ link, welcome, records, declined }) {
  if (link.state !== "open" || !welcome || !records) return { on: false, text: "Not recording" };
  if (welcome.agreed !== false) return { on: true, text: "Recording" };
  return { on: false, text: declined ? "You are not recorded" : "Recording begins after you agree" };
}

// {state, text, hint} of the banner.
export function bannerFor(now) {
  const { link, agent, me, driving, agents, idle, idleSeconds, paused, takeKey, takeover, listens } = now;
  if (link.state === "ended") return { state: "lost", text: link.title ?? "Disconnected", hint: link.text ?? "" };
  if (link.state === "lost") {
    const left = Math.max(0, Math.ceil((link.until - performance.now()) / 1000));
    const meanwhile = link.attempt > MANY ? "the run may be over" : "the policy drives meanwhile";
    return { state: "lost", text: "Connection lost", hint: `trying again in ${left} s; ${meanwhile}` };
  }
  if (link.state !== "open" || agents.size === 0) return { state: "none", text: "Connecting", hint: "" };
  if (driving) {
    if (idle > idleSeconds / 2) {
      const left = Math.max(0, Math.ceil(idleSeconds - idle));
      return { state: "warn", text: `Still there? You drive ${driving}`, hint: `back to the policy in ${left} s without a key` };
    }
    const back = { hold: `let go of ${takeKey} to hand back`, sticky: `${takeKey} or Esc hands back`, any: "let go of all keys to hand back" };
    return { state: "you", text: `You drive ${driving}`, hint: back[takeover] };
  }
  const others = [...agents.values()].filter((each) => each.driver && each.driver !== me);
  const shown = others.find((each) => each.name === agent) ?? others[0];
  if (shown) {
    const more = others.length > 1 ? `and ${others.length - 1} more` : "the others are driven by the policy";
    return { state: "other", text: `${shown.driver} drives ${shown.name}`, hint: agents.size > 1 ? more : "" };
  }
  const how = {
    hold: `hold ${takeKey} to drive ${agent}`,
    sticky: `press ${takeKey} to drive ${agent}`,
    any: `hold any of its keys to drive ${agent}`,
  };
  const hint = listens ? how[takeover] : "click the picture, or tab to it, to use the keys";
  return { state: "policy", text: paused ? "Policy drives (paused)" : "Policy drives", hint: agent ? hint : "" };
}

function sum(numbers) {
  return Object.values(numbers).reduce((total, number) => total + number, 0);
}

function signed(number) {
  if (number === undefined || number === null) return "–";
  const digits = Math.abs(number) >= 100 ? 1 : Math.abs(number) >= 10 ? 2 : 3;
  return number.toFixed(digits).replace("-", "−");
}

function count(number) {
  return String(number).replace(/\B(?=(\d{3})+$)/g, "\u2009");
}
