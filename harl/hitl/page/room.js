// What this page knows of the room: who I am, the agents, the newest step, and the pace.

const FALLBACK_TTL = 500;
const FALLBACK_IDLE = 20;
const ROLES = ["observer", "controller", "trainer", "admin"];

export class Room {
  constructor(connection, held, announce) {
    Object.assign(this, { connection, held, announce });
    this.agents = new Map(); // name → what the welcome says of it, with its name, id for each control, and driver
    this.mine = null; // name of the agent that I have chosen
    this.welcome = null;
    this.frame = null; // the newest frame or tick that is on the screen
    this.drawnAt = 0;
    this.pace = { state: null, speed: 1, by: null };
    this.link = { state: "connecting" };
    this.records = false; // whether the run records people
    this.declined = null; // version of the terms that I did not agree to
    this.seq = 0;
  }

  enter(welcome) {
    this.welcome = welcome;
    this.records = Boolean(welcome.recording);
    this.agents = new Map(Object.entries(welcome.agents).map(([name, agent]) => [name, {
      ...agent,
      name,
      driver: welcome.drivers?.[name] ?? null,
      noop: agent.noop ?? nothing(agent.action_space),
      controls: agent.controls.map((control, i) => ({ ...control, id: control.code || `button ${i}` })),
    }]));
    if (!this.agents.has(this.mine)) this.mine = [...this.agents.keys()][0] ?? null;
    this.pace = { speed: 1, by: null, state: welcome.pace };
  }

  may(role) {
    return ROLES.indexOf(this.welcome?.role) >= ROLES.indexOf(role);
  }

  agent() {
    return this.agents.get(this.mine) ?? null;
  }

  me() {
    return this.welcome?.name ?? null;
  }

  nextSeq() {
    this.seq += 1;
    return this.seq;
  }

  seen() {
    return { ep: this.frame?.ep ?? 0, step: this.frame?.step ?? 0 };
  }

  shownAt() {
    return this.drawnAt;
  }

  leaseTtl() {
    return this.welcome?.lease_ttl_ms ?? FALLBACK_TTL;
  }

  idleSeconds() {
    return this.welcome?.idle_s ?? FALLBACK_IDLE;
  }

  // A frame or tick comes onto the screen; one that comes again has been there since it came first.
  drawn(frame) {
    if (this.frame?.ep !== frame.ep || this.frame.step !== frame.step) this.drawnAt = performance.now();
    this.frame = frame;
    if (frame.meta.rec !== undefined) this.records = frame.meta.rec;
    for (const [name, driver] of Object.entries(frame.meta.driver ?? {})) {
      const agent = this.agents.get(name);
      if (agent) agent.driver = driver;
    }
  }

  holds(name, holder) {
    const agent = this.agents.get(name);
    if (agent) agent.driver = holder;
  }
}

function nothing(space) {
  if (space.kind === "discrete") return 0;
  if (space.kind === "multidiscrete") return space.nvec.map(() => 0);
  return space.low.map((low, i) => Math.min(space.high[i] ?? Infinity, Math.max(low ?? -Infinity, 0)));
}
