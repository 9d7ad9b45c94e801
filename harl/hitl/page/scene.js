// Draws a scene (shapes in the world's own unit, y upwards) on a canvas, with who drives what around it.
//
// What is drawn over it, numbers, rings, arrows and names, comes from the same frame as the shapes.

const TAU = 2 * Math.PI;
const GRID = 0.5;
const SILENT = "_"; // what agents say that say nothing
const BUBBLE = 10; // pixels from where an agent says something to the bubble
const ARROW = 5; // pixels of the shortest arrow
const SMALLEST = 4; // pixels of the smallest radius that can still be seen

// Place of a scene on the canvas: {scale, x, y}, so that its bounds fit with some room around them.
export function fit([left, bottom, right, top], width, height) {
  const scale = Math.min(width / (right - left), height / (top - bottom)) * 0.9;
  return { scale, x: width / 2 - (scale * (left + right)) / 2, y: height / 2 + (scale * (bottom + top)) / 2 };
}

// `look`: colours of the page, its font, and width and height of the canvas; `crew`: name → {colour, index, mine, driver (name or null), me, moves [[dx, dy, strength]]};
// `trails`: name → [[x, y], …]; `tags`: where names stand.
export function drawScene(ctx, scene, place, look, crew, trails, tags) {
  const at = (x, y) => [place.x + x * place.scale, place.y - y * place.scale];
  paper(ctx, place, look, at);
  for (const [name, path] of trails) trail(ctx, path, crew.get(name)?.colour ?? look.ink, at);
  const bodies = scene.shapes.filter((shape) => shape.kind === "circle");
  for (const shape of scene.shapes) {
    if (shape.kind === "circle") circle(ctx, shape, at(shape.x, shape.y), place.scale, look);
    else if (shape.kind === "line") line(ctx, shape, at);
  }
  for (const shape of bodies) {
    const member = crew.get(shape.agent);
    if (member) around(ctx, shape, member, at(shape.x, shape.y), place.scale, look);
  }
  const said = scene.shapes.filter((shape) => shape.kind === "text");
  names(ctx, bodies, said, crew, at, place.scale, look, tags);
  for (const shape of said) words(ctx, shape, at(shape.x, shape.y), look);
}

function paper(ctx, place, look, at) {
  ctx.fillStyle = look.paper;
  ctx.fillRect(0, 0, look.width, look.height);
  const [left, top] = [-place.x / place.scale, place.y / place.scale];
  const [right, bottom] = [left + look.width / place.scale, top - look.height / place.scale];
  ctx.lineWidth = 1;
  const spacing = GRID * 2 ** Math.max(0, Math.ceil(Math.log2(24 / (GRID * place.scale))));
  for (let x = Math.ceil(left / spacing) * spacing; x <= right; x += spacing) {
    rule(ctx, x === 0 ? look.axis : look.grid, at(x, bottom), at(x, top));
  }
  for (let y = Math.ceil(bottom / spacing) * spacing; y <= top; y += spacing) {
    rule(ctx, y === 0 ? look.axis : look.grid, at(left, y), at(right, y));
  }
}

function rule(ctx, colour, [x1, y1], [x2, y2]) {
  ctx.strokeStyle = colour;
  ctx.beginPath();
  ctx.moveTo(Math.round(x1) + 0.5, Math.round(y1) + 0.5);
  ctx.lineTo(Math.round(x2) + 0.5, Math.round(y2) + 0.5);
  ctx.stroke();
}

function trail(ctx, path, colour, at) {
  ctx.lineCap = "butt"; // round ends would show as dots where the pieces overlap
  ctx.strokeStyle = colour;
  for (let i = 1; i < path.length; i++) {
    ctx.globalAlpha = 0.6 * (i / path.length) ** 1.4;
    ctx.lineWidth = 1 + 2.5 * (i / path.length);
    ctx.beginPath();
    ctx.moveTo(...at(...path[i - 1]));
    ctx.lineTo(...at(...path[i]));
    ctx.stroke();
  }
  ctx.globalAlpha = 1;
}

function circle(ctx, shape, [x, y], scale, look) {
  const r = Math.max(SMALLEST, shape.r * scale);
  ctx.globalAlpha = shape.alpha ?? 1;
  ctx.beginPath();
  if (shape.agent) {
    ctx.arc(x, y, r, 0, TAU);
  } else {
    // Not only by colour: what is no agent is a diamond in a ring of its true size.
    ctx.arc(x, y, r, 0, TAU);
    ctx.strokeStyle = look.edge;
    ctx.lineWidth = 1;
    ctx.stroke();
    ctx.beginPath();
    const d = r * 0.98;
    ctx.moveTo(x, y - d);
    ctx.lineTo(x + d, y);
    ctx.lineTo(x, y + d);
    ctx.lineTo(x - d, y);
    ctx.closePath();
  }
  ctx.fillStyle = look.dark && !shape.agent && brightness(shape.fill) < 0.35 ? `color-mix(in srgb, ${shape.fill}, #fff 45%)` : shape.fill;
  ctx.fill();
  ctx.strokeStyle = look.edge;
  ctx.lineWidth = 1.25;
  ctx.stroke();
  ctx.globalAlpha = 1;
  if (shape.label && !shape.agent) text(ctx, shape.label, x, y + r + 12, look.ink, look, 11);
}

function line(ctx, shape, at) {
  ctx.strokeStyle = shape.stroke;
  ctx.lineWidth = 2;
  ctx.beginPath();
  ctx.moveTo(...at(shape.x1, shape.y1));
  ctx.lineTo(...at(shape.x2, shape.y2));
  ctx.stroke();
}

// Pixels around an agent's centre that its body and its ring take.
function reach(shape, member, scale) {
  return Math.max(SMALLEST, shape.r * scale) + (member?.mine ? 11 : member?.driver ? 8 : 2);
}

// Names of the agents that are driven, and of mine, where they cover nobody.
function names(ctx, bodies, said, crew, at, scale, look, tags) {
  const [wanted, taken] = [[], []];
  ctx.font = `600 12px ${look.font}`;
  for (const shape of bodies) {
    const member = crew.get(shape.agent);
    const [x, y] = at(shape.x, shape.y);
    taken.push({ x, y, r: reach(shape, member, scale), weight: shape.agent ? 1 : 0.6 });
    if (!member) continue;
    const r = reach(shape, member, scale);
    for (const [dx, dy, strength] of member.moves) {
      const far = r + (ARROW + 9 * strength) / 2;
      taken.push({ x: x + dx * far, y: y - dy * far, r: 8, weight: 0.6 });
    }
    const label = member.me ? "you" : member.driver ?? (member.mine ? shape.agent : null);
    if (label) wanted.push({ name: shape.agent, label, x, y, r, me: member.me, width: ctx.measureText(label).width + 14 });
  }
  for (const shape of said) {
    const [x, y] = at(shape.x, shape.y);
    if (shape.agent && shape.text !== SILENT) taken.push({ x: x + BUBBLE + 11, y: y - 9, r: 14, weight: 1 });
  }
  const places = tags.arrange(wanted, taken, look);
  for (const { name, label, me, width } of wanted) badge(ctx, label, places.get(name), width, me, look);
}

// The number of an agent, the ring that says whose it is, and where its action pushes it.
function around(ctx, shape, member, [x, y], scale, look) {
  const r = Math.max(SMALLEST, shape.r * scale);
  if (r >= 9) {
    const size = Math.min(16, Math.max(10, r * 0.62));
    ctx.font = `600 ${size}px ${look.font}`;
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    ctx.fillStyle = brightness(shape.fill) < 0.6 ? "#fff" : "#111";
    ctx.fillText(member.index, x, y + size * 0.06);
  }
  const clear = reach(shape, member, scale);
  for (const [dx, dy, strength] of member.moves) arrow(ctx, x, y, clear, dx, -dy, strength, look);
  if (member.mine || member.driver) {
    const gap = member.mine ? 7 : 5;
    ctx.beginPath();
    ctx.arc(x, y, r + gap, 0, TAU);
    ctx.setLineDash(member.driver ? [] : [5, 4]); // dashed while the policy drives
    if (member.mine) {
      ctx.strokeStyle = look.paper;
      ctx.lineWidth = 5.5;
      ctx.stroke();
    }
    ctx.strokeStyle = member.mine ? look.mine : look.ink;
    ctx.lineWidth = member.me ? 4 : member.mine ? 2.5 : 1.5;
    ctx.stroke();
    ctx.setLineDash([]);
  }
}

function arrow(ctx, x, y, from, dx, dy, strength, look) {
  const [fromX, fromY] = [x + dx * from, y + dy * from];
  const length = ARROW + 9 * strength;
  ctx.fillStyle = look.ink;
  ctx.beginPath();
  ctx.moveTo(fromX + dx * length, fromY + dy * length);
  ctx.lineTo(fromX - dy * 5, fromY + dx * 5);
  ctx.lineTo(fromX + dy * 5, fromY - dx * 5);
  ctx.closePath();
  ctx.fill();
}

function badge(ctx, label, [x, y], width, strong, look) {
  ctx.font = `600 12px ${look.font}`;
  ctx.beginPath();
  ctx.roundRect(x - width / 2, y - 10, width, 20, 10);
  ctx.fillStyle = strong ? look.mine : look.paper;
  ctx.fill();
  ctx.strokeStyle = strong ? look.mine : look.edge;
  ctx.lineWidth = 1;
  ctx.stroke();
  ctx.fillStyle = strong ? look.onMine : look.ink;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  ctx.fillText(label, x, y + 0.5);
}

// What an agent says stands in a bubble at its upper right, other text where it belongs.
function words(ctx, shape, [x, y], look) {
  if (!shape.agent) {
    text(ctx, shape.text, x, y, look.ink, look, 13);
    return;
  }
  if (shape.text === SILENT) return;
  ctx.font = `600 13px ${look.font}`;
  const width = ctx.measureText(shape.text).width + 14;
  const [left, top] = [x + BUBBLE, y - 20];
  ctx.beginPath();
  ctx.roundRect(left, top, width, 22, 7);
  ctx.moveTo(left + 3, top + 18);
  ctx.lineTo(x + 3, y + 6);
  ctx.lineTo(left + 12, top + 22);
  ctx.fillStyle = look.ink;
  ctx.fill();
  ctx.fillStyle = look.paper;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  ctx.fillText(shape.text, left + width / 2, top + 11.5);
}

function text(ctx, label, x, y, colour, look, size) {
  ctx.font = `${size}px ${look.font}`;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  ctx.fillStyle = colour;
  ctx.fillText(label, x, y);
}

function brightness(colour) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16) / 255);
  return 0.299 * r + 0.587 * g + 0.114 * b;
}
