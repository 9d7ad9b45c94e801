// Pause, steps, speed, and what became of an episode.

import { COMMANDS, commandCodes, keyName } from "./keys.js";

const SPEEDS = [0.25, 0.5, 1, 2, 4];
const MARKS = ["success", "fail", "discard"];
const SAID = { success: "a success", fail: "a failure", discard: "not to count" };

export class Transport {
  constructor(room, find, say) {
    Object.assign(this, { room, find, say });
    for (const id of ["pause", "single", "slower", "faster", ...MARKS]) find(id).addEventListener("click", () => this.command(id));
  }

  enter() {
    this.find("transport").hidden = !this.room.may("controller");
    this.find("pace-cluster").hidden = !this.room.may("trainer");
    this.update();
  }

  command(id) {
    const { room } = this;
    if (MARKS.includes(id)) {
      if (!room.may("controller")) return;
      const { ep } = room.seen();
      if (room.connection.send("mark", { label: id, ep })) this.say(`Episode ${ep}: ${SAID[id]}`);
      return;
    }
    if (!room.may("trainer")) return;
    const paused = room.pace.state === "paused";
    if (id === "pause") room.connection.send("pace", { op: paused ? "resume" : "pause" });
    else if (id === "single") room.connection.send("pace", { op: "step" });
    else {
      const at = SPEEDS.indexOf(room.pace.speed ?? 1);
      const value = SPEEDS[Math.min(SPEEDS.length - 1, Math.max(0, at + (id === "faster" ? 1 : -1)))];
      if (value !== room.pace.speed) room.connection.send("pace", { op: "speed", value });
    }
  }

  update() {
    const { pace } = this.room;
    const paused = pace.state === "paused";
    this.find("pause").dataset.paused = String(paused);
    this.find("pause-text").textContent = paused ? "Go on" : "Pause";
    this.find("speed").textContent = `${{ 0.25: "¼", 0.5: "½" }[pace.speed] ?? pace.speed ?? 1}×`;
    this.find("slower").disabled = (pace.speed ?? 1) <= SPEEDS[0];
    this.find("faster").disabled = (pace.speed ?? 1) >= SPEEDS.at(-1);
  }

  keyLabels() {
    for (const id of ["pause", "single", "slower", "faster", ...MARKS]) {
      this.find(id).title = `${COMMANDS[id][0]} (${keyName(commandCodes(id)[0])})`;
    }
  }
}
