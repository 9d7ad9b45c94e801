// Puts the page together.

import { Announcer, toast } from "./announce.js";
import { Connection } from "./connection.js";
import { holdButton, keepFocus, Keyboard, whenUnheard } from "./controls.js";
import { askConsent, askToken, forgetToken, takeToken } from "./entry.js";
import { Feedback } from "./feedback.js";
import { Gamepads } from "./gamepad.js";
import { Held } from "./held.js";
import { Pad } from "./pad.js";
import { Preferences } from "./preferences.js";
import { Room } from "./room.js";
import { Screen } from "./screen.js";
import { settings } from "./settings.js";
import { Takeover } from "./takeover.js";
import { Transport } from "./transport.js";
import { View } from "./view.js";

const ENOUGH = 10; // steps without a picture after which there is none of that kind
const $ = (id) => document.getElementById(id);

const fingers = matchMedia("(pointer: coarse)");
const announcer = new Announcer($("live"));
const say = (text, level) => toast($("toasts"), announcer, text, level);
const address = new URL("socket", location.href);
address.protocol = address.protocol.replace("http", "ws");
address.hash = "";
const connection = new Connection(address.href);
const held = new Held();
const room = new Room(connection, held, (text) => announcer.say(text));
const takeover = new Takeover(room);
const view = new View($("canvas"), (frame) => screen.crew(frame));
const screen = new Screen($, { room, connection, takeover, view, announcer }, {
  choose, revoke: (agent) => connection.send("control", { op: "revoke", agent, mode: "hold" }),
});
const pad = new Pad($("caps"), held);
const feedback = new Feedback(room, {
  praise: $("praise"), blame: $("blame"), undo: $("undo"), target: $("feedback-target"),
  praised: $("praised"), blamed: $("blamed"), events: $("events"),
});
const transport = new Transport(room, $, say);
const preferences = new Preferences({
  open: $("open-settings"), dialog: $("settings"), name: $("set-name"), mode: $("set-mode"), fps: $("set-fps"),
  theme: $("set-theme"), shortcuts: $("set-shortcuts"), trails: $("set-trails"), buzz: $("set-buzz"),
  keymap: $("keymap"), note: $("keymap-note"), reset: $("keymap-reset"),
}, () => room.agent(), preferred);
const keyboard = new Keyboard($("play"), held, () => (room.may("controller") ? room.agent() : null), command);
new Gamepads(held, () => room.agent(), command, (name) => say(name ? `Gamepad: ${name}` : "The gamepad is gone"));

let token = takeToken();
let agreed = settings.get("consent");
let modes = []; // kinds of picture that the room has, the best first
let subscribed = null;
let pictureless = 0; // steps that came as numbers in place of a picture since then

// Commands of the page, by key, button or gamepad.

function command(id, down) {
  if (id === "take") {
    if (room.may("controller")) takeover.hold("key", down);
  } else if (!down) return;
  else if (id === "release") takeover.giveBack();
  else if (id === "next" || id === "previous") neighbour(id === "next" ? 1 : -1);
  else if (["praise", "blame", "undo"].includes(id)) {
    if (!room.may("trainer")) return;
    if (id === "undo") feedback.undo();
    else feedback.give(id === "praise" ? 1 : -1);
  } else transport.command(id);
}

function neighbour(step) {
  const names = [...room.agents.keys()];
  if (names.length > 1) choose(names[(names.indexOf(room.mine) + step + names.length) % names.length]);
}

function choose(name) {
  if (name === room.mine) return;
  takeover.giveBack();
  keyboard.clear();
  held.clear();
  room.mine = name;
  pad.show(room.agent());
  announcer.say(`${name} is yours to drive`);
  screen.refresh();
  view.refresh();
}

// The room.

connection.addEventListener("welcome", async ({ detail }) => {
  room.enter(detail);
  screen.enter(detail);
  transport.enter();
  pad.show(room.agent());
  modes = detail.modes ?? ["state", "jpeg"];
  preferences.offer(modes);
  transport.keyLabels();
  watch();
  screen.refresh();
  const version = detail.consent?.version;
  if (version && !detail.agreed && room.declined !== version) {
    if (await askConsent($("consent"), detail.consent)) {
      agreed = version;
      settings.set("consent", agreed);
      connection.send("consent", { version });
    } else room.declined = version; // only watches, is not asked again, and has agreed to nothing
  }
  if (document.activeElement === document.body && room.may("controller")) $("play").focus({ preventScroll: true });
});

function watch() {
  const wish = settings.get("mode");
  const mode = wish === "none" || modes.includes(wish) ? wish : modes[0] ?? "none";
  const pixels = Math.round(Math.max(view.width ?? 512, view.height ?? 512) * Math.min(2, devicePixelRatio || 1));
  const env = Math.min(Math.max(0, Math.floor(Number($("env").value) || 0)), room.welcome.num_envs - 1);
  subscribed = mode;
  pictureless = 0;
  connection.send("subscribe", { env, mode, fps: settings.get("fps"), max_px: Math.min(1024, Math.max(128, pixels)) });
}

connection.addEventListener("frame", ({ detail }) => {
  pictureless = 0;
  view.show(detail);
});
view.addEventListener("drawn", ({ detail }) => {
  room.drawn(detail);
  takeover.saw(detail);
  screen.drawn(detail);
});
connection.addEventListener("latency", () => screen.refresh());

const RECEIVE = {
  tick: (message) => {
    view.show({ ...message, meta: message, codec: null });
    pictureless += 1;
    if (subscribed === "none" || pictureless < ENOUGH) return;
    modes = modes.filter((mode) => mode !== subscribed);
    watch();
  },
  control: (message) => {
    if (message.state === "granted") room.holds(message.agent, message.holder);
    else if (message.state !== "denied") room.holds(message.agent, null);
    takeover.told(message);
  },
  ack: (message) => {
    if (message.status === "illegal") say(message.text ?? "That action is not allowed now", "warning");
    if (message.status === "not_owner" && message.agent === takeover.lease) {
      takeover.told({ agent: message.agent, state: "expired", holder: null, reason: message.text });
    }
  },
  pace: (message) => {
    if (message.state === "paused" && room.pace.state !== "paused") {
      say(message.by ? `Paused by ${message.by}` : "Paused");
      takeover.paused();
    }
    room.pace = message;
    transport.update();
  },
  credit: (message) => feedback.credited(message),
  notice: (message) => say(message.text, message.level),
  error: (message) => { if (!message.fatal) say(message.text, "warning"); },
};
connection.addEventListener("message", ({ detail }) => {
  RECEIVE[detail.type]?.(detail); // a newer room may say more than this page knows
  screen.refresh();
});

connection.addEventListener("link", async ({ detail }) => {
  room.link = { ...detail, title: ENDINGS[detail.why], until: performance.now() + (detail.delay ?? 0) };
  if (detail.why === "finished") Object.assign(room.link, { text: REASONS[detail.text] ?? detail.text });
  document.body.dataset.link = detail.state;
  for (const part of document.querySelectorAll(".panel, .transport")) part.inert = detail.state === "ended";
  if (detail.state !== "open") {
    takeover.forget();
    keyboard.clear();
    held.clear();
  }
  screen.refresh();
  if (detail.state !== "ended") return;
  if (detail.why === "refused" && connection.failure?.code === "auth") {
    forgetToken();
    token = await askToken($("door"), $("door-token"), detail.text);
    enter();
  } else ended(room.link);
});

const ENDINGS = {
  finished: "The run is over", replaced: "Opened in another window", idle: "You were away for long", refused: "The room closed the connection",
};
// What a run says of its end, in words.
const REASONS = { completed: "It has come to its last step.", interrupted: "It was stopped.", failed: "It ended with an error." };

function ended({ why, text, title }) {
  const over = why === "finished"; // nobody answers at its links now
  if (over) forgetToken();
  $("ended-title").textContent = title;
  $("ended-text").textContent = {
    replaced: "This session goes on there. Connect again to bring it here.",
    finished: `${sentence(text)} Nothing more is recorded. If the run is continued, this link may lead there again, or there is a new one.`,
  }[why] ?? text ?? "";
  $("ended-again").textContent = why === "replaced" ? "Use it here" : "Connect again";
  $("ended-again").hidden = over;
  $("ended-stay").textContent = over ? "Close" : "Stay";
  $("ended").returnValue = "";
  $("ended").showModal();
  $("ended").addEventListener("close", () => { if ($("ended").returnValue === "again") enter(); }, { once: true });
}

// A reason as a sentence.
function sentence(text) {
  return text ? `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}` : "";
}

function enter() {
  const device = fingers.matches ? "touch" : "desktop";
  connection.open(() => ({
    token, device, ...(settings.get("name") && { name: settings.get("name") }), ...(agreed && { consent: agreed }),
  }));
}

function preferred(name) {
  if (name === "name") {
    connection.resume = null;
    enter();
  } else if (name === "mode" || name === "fps") {
    if (room.welcome) watch();
  } else if (name === "keys") {
    pad.show(room.agent());
    screen.keyLabels();
    transport.keyLabels();
  }
  screen.refresh();
}

takeover.addEventListener("change", () => {
  screen.refresh();
  view.refresh();
});
takeover.addEventListener("refused", ({ detail }) => say(detail.holder ? `${detail.holder} drives ${detail.agent}` : `${detail.agent}: ${detail.reason}`, "warning"));
takeover.addEventListener("lost", ({ detail }) => say(`${detail.agent} went back to the policy: ${detail.reason}`, "warning"));
$("settings").addEventListener("close", () => setTimeout(() => $("play").focus({ preventScroll: true })));
whenUnheard(() => {
  takeover.giveBack();
  held.clear();
});
holdButton($("take"), (down) => takeover.hold("button", down));
for (const radio of $("modes").querySelectorAll("input")) {
  radio.checked = radio.value === settings.get("takeover");
  radio.addEventListener("change", () => {
    settings.set("takeover", radio.value);
    screen.refresh();
  });
  // Chosen with a pointer: the keys are for driving again.
  radio.parentElement.addEventListener("pointerup", () => setTimeout(() => $("play").focus({ preventScroll: true })));
}
for (const element of document.querySelectorAll(".panel, .transport")) keepFocus(element, $("play"));
for (const kind of ["focus", "blur"]) $("play").addEventListener(kind, () => screen.refresh());
// A click on nothing leaves the keys where they were. A text that is being marked stays marked, and a screen reader that
// clicks what it reads has no pointer.
document.addEventListener("click", ({ pointerType }) => {
  const nowhere = pointerType && document.activeElement === document.body && getSelection().isCollapsed;
  if (nowhere && room.may("controller")) $("play").focus({ preventScroll: true });
});
$("canvas").addEventListener("pointerdown", () => $("play").focus({ preventScroll: true }));
$("env").addEventListener("change", () => {
  takeover.giveBack();
  watch();
});

if (token === null) {
  room.link = { state: "none" };
  askToken($("door"), $("door-token")).then((given) => {
    token = given;
    enter();
  });
} else enter();
