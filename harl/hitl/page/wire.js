// The binary frames of the protocol: a fixed header, the tick as JSON, and the picture.

const HEADER = 22;
export const CODEC = { 1: "image/jpeg", 2: "image/png", 3: "image/webp", 4: "state" };

// ArrayBuffer → {env, ep, step, tServer, meta, codec, payload}; throws on what is not a frame of version 1.
export function decodeFrame(buffer) {
  if (buffer.byteLength < HEADER) throw new Error("frame too short");
  const view = new DataView(buffer);
  const codec = CODEC[view.getUint8(1)];
  if (view.getUint8(0) !== 1 || codec === undefined) throw new Error("frame of an unknown version or codec");
  const end = HEADER + view.getUint16(20);
  if (end > buffer.byteLength) throw new Error("frame cut short");
  const text = new TextDecoder();
  const payload = new Uint8Array(buffer, end);
  return {
    env: view.getUint16(2),
    ep: view.getUint32(4),
    step: view.getUint32(8),
    tServer: view.getFloat64(12),
    meta: JSON.parse(text.decode(new Uint8Array(buffer, HEADER, end - HEADER))),
    codec,
    payload: codec === "state" ? JSON.parse(text.decode(payload)) : payload,
  };
}
