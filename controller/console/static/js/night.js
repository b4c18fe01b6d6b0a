// The big countdown, by the console's clock; it keeps running while fragments come and go.
import { nowMs } from "./words.js";

const two = (n) => String(n).padStart(2, "0");

function tick() {
  for (const el of document.querySelectorAll("[data-countdown]")) {
    const left = Math.max(0, Math.ceil((Date.parse(el.dataset.countdown) - nowMs()) / 1000));
    const days = Math.floor(left / 86400);
    const text = `${days ? `${days}d ` : ""}${two(Math.floor(left / 3600) % 24)}:${two(Math.floor(left / 60) % 60)}:${two(left % 60)}`;
    if (el.textContent !== text) el.textContent = text;
    el.classList.toggle("long", days > 0);
  }
}

tick();
setInterval(tick, 250);
document.addEventListener("forecrest:updated", tick);
