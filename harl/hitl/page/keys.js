// Names of keys, what the page's own keys do, and how a person has moved them.

import { settings } from "./settings.js";

// Commands of the page: id → [label, codes, whether it can be turned off as a single-key shortcut].
export const COMMANDS = {
  take: ["Take over", ["Space"], false],
  release: ["Give back", ["Escape"], false],
  praise: ["Good", ["Equal", "NumpadAdd"], true],
  blame: ["Bad", ["Minus", "NumpadSubtract"], true],
  undo: ["Undo feedback", ["Backspace"], true],
  pause: ["Pause or go on", ["KeyP"], true],
  single: ["One step", ["Period"], true],
  slower: ["Slower", ["Comma"], true],
  faster: ["Faster", ["Slash"], true],
  success: ["Episode: success", ["Home"], true],
  fail: ["Episode: fail", ["End"], true],
  discard: ["Episode: discard", ["Delete"], true],
  next: ["Next agent", ["PageDown"], true],
  previous: ["Previous agent", ["PageUp"], true],
};

const NAMES = {
  ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Space: "Space", Escape: "Esc", Backspace: "⌫",
  Equal: "+", Minus: "−", NumpadAdd: "Num +", NumpadSubtract: "Num −", Period: ".", Comma: ",", Slash: "/",
  PageDown: "PgDn", PageUp: "PgUp", Delete: "Del", Home: "Home", End: "End", Semicolon: ";", Quote: "'",
  BracketLeft: "[", BracketRight: "]", Backslash: "\\", Backquote: "`", Enter: "Enter",
};
let layout = null; // what is printed on the keys, where the browser tells

navigator.keyboard?.getLayoutMap?.().then((map) => {
  layout = map;
}).catch(() => {});

export function keyName(code) {
  if (!code) return "";
  if (/^(Key|Digit)/.test(code)) return (layout?.get(code) ?? code.replace(/^(Key|Digit)/, "")).toUpperCase();
  return NAMES[code] ?? code.replace(/^Numpad/, "Num ");
}

export function commandCodes(id) {
  const own = settings.get("keys")[`command ${id}`];
  return own ? [own] : COMMANDS[id][1];
}

// The code at which a control of an agent is: its default one, unless it was moved.
export function controlCode(control) {
  return settings.get("keys")[`control ${control.id}`] ?? control.code;
}

export function commandAt(code) {
  return Object.keys(COMMANDS).find((id) => commandCodes(id).includes(code)) ?? null;
}

export function controlAt(agent, code) {
  return agent?.controls.find((control) => control.code && controlCode(control) === code) ?? null;
}

// Put a command or a control ("command praise", "control KeyA") on another key. Returns what is there already, or null.
export function moveKey(entry, code, agent) {
  const command = commandAt(code);
  const control = controlAt(agent, code);
  if (command && `command ${command}` !== entry) return COMMANDS[command][0];
  if (control && `control ${control.id}` !== entry) return control.label;
  settings.set("keys", { ...settings.get("keys"), [entry]: code });
  return null;
}

export function resetKeys() {
  settings.set("keys", {});
}
