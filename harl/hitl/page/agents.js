// The list of agents: which is mine, who drives each, and what it does.

import { split } from "./held.js";

// `choose(name)` makes an agent mine, `revoke(name)` takes it from its driver.
export class Agents {
  constructor(list, choose, revoke) {
    Object.assign(this, { list, choose, revoke });
    this.rows = new Map();
  }

  build(agents, canAct, isAdmin) {
    this.rows.clear();
    this.list.replaceChildren(...[...agents.values()].map((agent) => {
      const item = document.createElement("li");
      const row = document.createElement("button");
      row.type = "button";
      row.className = "agent";
      row.disabled = !canAct;
      row.innerHTML = '<svg class="swatch" viewBox="0 0 24 24" aria-hidden="true"><circle class="ring" cx="12" cy="12" r="11"/><circle class="body" cx="12" cy="12" r="8"/><text x="12" y="16" text-anchor="middle"></text></svg><span class="name"></span><span class="driver"></span><span class="does"></span>';
      row.querySelector(".body").setAttribute("fill", agent.colour);
      row.querySelector("text").textContent = agent.index;
      row.querySelector(".name").textContent = agent.name;
      row.addEventListener("click", () => this.choose(agent.name));
      item.append(row);
      const take = document.createElement("button");
      take.type = "button";
      take.className = "quiet revoke";
      take.textContent = "Revoke";
      take.setAttribute("aria-label", `Take ${agent.name} from its driver`);
      take.hidden = true;
      take.addEventListener("click", () => this.revoke(agent.name));
      if (isAdmin) item.append(take);
      this.rows.set(agent.name, { row, take, driver: row.querySelector(".driver"), does: row.querySelector(".does") });
      return item;
    }));
  }

  // `frame`: the one that is on the screen, null before there is any.
  update(agents, mine, me, driving, frame) {
    const meta = frame?.meta;
    const actions = shownActions(frame);
    for (const [name, { row, take, driver, does }] of this.rows) {
      const holder = agents.get(name).driver;
      const yours = driving === name;
      row.setAttribute("aria-pressed", String(name === mine));
      row.dataset.driver = yours ? "you" : holder ? "other" : "policy";
      setText(driver, yours ? "you" : holder ?? standIn(meta?.source?.[name]));
      setText(does, actionText(agents.get(name), actions[name]));
      take.hidden = !holder || holder === me;
    }
  }
}

function standIn(source) {
  return source === "default" || source === "previous" ? "stand-in" : "policy";
}

// Name → the action that led to a frame; none at the start of an episode, which no action has led to.
export function shownActions(frame) {
  return (frame?.step && frame.meta.actions) || {};
}

// An action in the words of the agent's controls.
export function actionText(agent, action) {
  if (action === undefined || action === null) return "";
  const parts = split(agent, action);
  if (parts.length > 0) return parts.slice(0, 3).map(([control]) => control.label).join(", ");
  const numbers = Array.isArray(action) ? action : [action];
  if (String(numbers) === String([agent.noop].flat())) return "nothing";
  return numbers.slice(0, 3).map((number) => Number(number.toFixed(2))).join(" ") + (numbers.length > 3 ? " …" : "");
}

const WAYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

// Where an action pushes the agent, by the arrow keys that would do the same: [[dx, dy, strength]].
export function moves(agent, action) {
  return split(agent, action).flatMap(([{ code }, strength]) => (WAYS[code] ? [[...WAYS[code], strength]] : []));
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
