// The way in: the token of the link, and agreement to the room's text.

import { settings } from "./settings.js";

const PLACE = "harl.token";

// The token, from the address (from which it is removed at once) or from before this page was reloaded; null without one.
export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1));
  const token = given.get("token");
  if (location.hash) history.replaceState(null, "", location.pathname + location.search);
  if (given.get("name")) settings.set("name", given.get("name").slice(0, 32));
  try {
    if (token) sessionStorage.setItem(PLACE, token);
    return token ?? sessionStorage.getItem(PLACE);
  } catch {
    return token;
  }
}

export function forgetToken() {
  try {
    sessionStorage.removeItem(PLACE);
  } catch {
    // Nothing was kept, so there is nothing to forget.
  }
}

// Ask for the token; resolves with it.
export function askToken(dialog, input, text) {
  if (text) dialog.querySelector("#door-text").textContent = text;
  input.value = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      const value = input.value.trim();
      const token = new URLSearchParams(value.split("#")[1] ?? "").get("token") ?? value;
      try {
        sessionStorage.setItem(PLACE, token);
      } catch {
        // Not kept over a reload then.
      }
      resolve(token);
    }, { once: true });
  });
}

// Show the text that people agree to; resolves with whether they do.
export function askConsent(dialog, consent) {
  dialog.querySelector("#consent-text").textContent = consent.text;
  dialog.querySelector("#consent-version").textContent = consent.version ? `Version ${consent.version}` : "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "agree"), { once: true });
  });
}
