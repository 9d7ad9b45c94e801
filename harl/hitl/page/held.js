// What is held down, by whatever device, and the action that it stands for.

// Events: change.
export class Held extends EventTarget {
  constructor() {
    super();
    this.codes = new Map(); // code → Map(source → strength), in the order in which they were pressed
  }

  press(code, source, strength = 1) {
    const sources = this.codes.get(code);
    if (sources === undefined) this.codes.set(code, new Map([[source, strength]]));
    else if (sources.get(source) === strength) return;
    else sources.set(source, strength);
    this.dispatchEvent(new Event("change"));
  }

  release(code, source) {
    const sources = this.codes.get(code);
    if (sources === undefined || !sources.delete(source)) return;
    if (sources.size === 0) this.codes.delete(code);
    this.dispatchEvent(new Event("change"));
  }

  clear(source = null) {
    const before = this.codes.size;
    if (source === null) this.codes.clear();
    else for (const code of [...this.codes.keys()]) {
      const sources = this.codes.get(code);
      if (sources.delete(source) && sources.size === 0) this.codes.delete(code);
    }
    if (this.codes.size !== before) this.dispatchEvent(new Event("change"));
  }

  has(code) {
    return this.codes.has(code);
  }

  get size() {
    return this.codes.size;
  }

  // [[control, strength 0..1]] of an agent, oldest press first.
  controls(agent) {
    const found = [];
    for (const [code, sources] of this.codes) {
      const control = agent.controls.find((each) => each.id === code);
      if (control) found.push([control, Math.max(...sources.values())]);
    }
    return found;
  }
}

// The action of an agent for held controls, [[control, strength]] oldest first; null where nothing is held: do nothing.
export function combine(agent, held) {
  if (held.length === 0) return null;
  const kind = agent.action_space.kind;
  if (agent.combine === "last") return held[held.length - 1][0].action;
  if (agent.combine === "component") {
    const action = [...agent.noop];
    for (const [control] of held) control.action.forEach((part, i) => { if (part !== null) action[i] = part; });
    return action;
  }
  const newest = new Map(); // of opposite directions the one pressed last counts
  for (const [control, strength] of held) newest.set(control.group ?? control.id, [control, strength]);
  if (kind !== "box") {
    let sum = agent.noop;
    for (const [control] of newest.values()) sum += control.action - agent.noop;
    return sum;
  }
  const { low, high } = agent.action_space;
  const sum = [...agent.noop];
  for (const [control, strength] of newest.values()) {
    control.action.forEach((part, i) => { sum[i] += strength * (part - agent.noop[i]); });
  }
  return sum.map((value, i) => Math.min(high[i] ?? Infinity, Math.max(low[i] ?? -Infinity, value)));
}

// How much of each control is in an action, [[control, strength]]: the reverse of `combine`, to put actions in words.
export function split(agent, action) {
  if (action === null || action === undefined) return [];
  const { controls, noop } = agent;
  if (agent.action_space.kind === "box") {
    return controls.map((control) => {
      const aim = control.action.map((part, i) => part - noop[i]);
      const length = aim.reduce((sum, part) => sum + part * part, 0);
      const along = aim.reduce((sum, part, i) => sum + part * (action[i] - noop[i]), 0);
      return [control, length === 0 ? 0 : Math.min(1, Math.max(0, along / length))];
    }).filter(([, strength]) => strength > 0.05);
  }
  if (agent.combine === "component") {
    return controls.filter((each) => each.action.some((part, i) => part !== null && part === action[i])).map((each) => [each, 1]);
  }
  const index = Array.isArray(action) ? action[0] : action;
  const alone = controls.find((control) => control.action === index);
  if (alone || agent.combine === "last") return alone ? [[alone, 1]] : [];
  for (const a of controls) for (const b of controls) {
    if (a.group < b.group && a.action + b.action - noop === index) return [[a, 1], [b, 1]];
  }
  return [];
}
