// Keep `[data-live="topic"]` elements fresh, and say so when that is not possible.
//
// An element with `data-src` is replaced by the fragment at that address whenever its topic changes; one without gets
// the event `forecrest:topic` instead. Focus and scroll position survive. On loss the page is greyed and a banner says
// since when and of when the numbers are; it goes by itself.
import { formatTime, setNow, t } from "./words.js";

const SILENCE_MS = 25000;
const topics = new Map(); // topic -> its newest message
let heardMs = Date.now();
let opened = false;
let source = null;

/** Fetch a fragment of ours; throws with the server's words. */
export async function fetchFragment(address, options = {}) {
  const response = await fetch(address, { ...options, headers: { "X-Fragment": "1", ...options.headers } });
  const text = await response.text();
  if (!response.ok) throw Object.assign(new Error(`${response.status}`), { status: response.status, html: text });
  return text;
}

/** POST a form's data with the token that proves it is ours. */
export function post(address, body) {
  const csrf = document.querySelector('meta[name="csrf"]').content;
  return fetchFragment(address, { method: "POST", body, headers: { "X-CSRF-Token": csrf } });
}

/** Replace what is in `el`, keeping the focus on the element of the same id. */
export function replaceContent(el, html) {
  const focused = el.contains(document.activeElement) ? document.activeElement.id : "";
  const open = new Set([...el.querySelectorAll("details[open][id]")].map((one) => one.id));
  const parsed = new DOMParser().parseFromString(html, "text/html");
  el.replaceChildren(...parsed.body.childNodes);
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  document.dispatchEvent(new CustomEvent("forecrest:updated", { detail: { root: el } }));
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}

/** Load the fragment of an element anew. The newest call wins. */
export async function refresh(el) {
  const turn = (el.turn = (el.turn ?? 0) + 1);
  try {
    const html = await fetchFragment(el.dataset.src);
    if (turn === el.turn) replaceContent(el, html);
  } catch (error) {
    if (turn !== el.turn) return;
    if (error.status === 401) location.reload();
    else if (error.status && error.status < 500) replaceContent(el, error.html);
    // Otherwise the numbers stay, greyed: the stream tells when there are newer ones.
  }
}

function onTopic(message) {
  const before = topics.get(message.topic);
  topics.set(message.topic, message);
  show();
  // The first message tells the revision the page was made with, or a later one: both are worth one look only if
  // the page is older than it.
  const known = before ? before.rev : message.at === null || message.at.slice(0, 19) <= (document.body.dataset.at ?? "").slice(0, 19) ? message.rev : -1;
  if (known === message.rev) return;
  for (const el of document.querySelectorAll("[data-live]")) {
    if (el.dataset.live !== message.topic) continue;
    if (el.dataset.src) refresh(el);
    else el.dispatchEvent(new CustomEvent("forecrest:topic", { detail: message }));
  }
}

function show() {
  const all = [...topics.values()];
  const oldest = (name) => all.map((one) => one[name]).filter(Boolean).sort()[0];
  const silent = opened && Date.now() - heardMs > SILENCE_MS;
  const lost = oldest("lost_at") ?? (all.length ? undefined : document.body.dataset.lost);
  const stale = oldest("stale_since") ?? (all.length ? undefined : document.body.dataset.staleSince);
  const at = oldest("at") ?? document.body.dataset.at;
  const of = at ? formatTime(Date.parse(at), "time") : "";
  let text = "";
  if (silent) text = t("js.console_lost", { since: formatTime(heardMs, "time"), of });
  else if (lost) text = t(at ? "js.lost" : "js.lost_empty", { since: formatTime(Date.parse(lost), "time"), of });
  else if (stale) text = t("js.stale", { of: formatTime(Date.parse(stale), "time") });
  const banner = document.getElementById("banner");
  if (banner.textContent !== text) banner.textContent = text;
  banner.classList.toggle("shown", text !== "");
  banner.classList.toggle("mild", !silent && !lost && Boolean(stale));
  document.documentElement.toggleAttribute("data-stale", text !== "");
  const pulse = document.getElementById("pulse");
  const live = source !== null && all.length > 0 && text === "";
  pulse.dataset.state = source === null ? "idle" : text ? "lost" : live ? "live" : "wait";
  const words = text ? "" : live ? `${t("js.live")} · ${of}` : t("js.connecting");
  if (pulse.lastElementChild.textContent !== words) pulse.lastElementChild.textContent = words;
}

/** Subscribe to every topic on the page. */
export function connect() {
  source?.close();
  const asked = new Set([...document.querySelectorAll("[data-live]")].map((el) => el.dataset.live));
  show();
  if (!asked.size) return;
  source = new EventSource(`/live?${[...asked].map((topic) => `topic=${encodeURIComponent(topic)}`).join("&")}`);
  const heard = (event) => {
    opened = true;
    heardMs = Date.now();
    const message = JSON.parse(event.data);
    setNow(message.now);
    return message;
  };
  source.addEventListener("beat", (event) => { heard(event); show(); });
  source.addEventListener("topic", (event) => onTopic(heard(event)));
  source.addEventListener("refused", (event) => { heard(event); location.reload(); });
  source.addEventListener("error", () => {
    // A console that ended closes the stream at once: no need to wait for the silence.
    if (opened) heardMs = Math.min(heardMs, Date.now() - SILENCE_MS - 1);
    show();
    // After an answer other than a stream the browser does not try again by itself.
    if (source.readyState === EventSource.CLOSED) setTimeout(() => { topics.clear(); connect(); }, 3000);
  });
}

window.addEventListener("pagehide", () => source?.close());
// A script changed what an element follows.
document.addEventListener("forecrest:topics", () => { topics.clear(); connect(); });

setInterval(show, 1000);
