// The status page: who owns the prefix, whether the job is ready, its figures, and one view at a time.

import { ApiError, Turns, get, hasToken, rememberToken } from "./api.js";
import { element, notice } from "./dom.js";
import { bytes, clock, count, counted, decimal, duration, moment } from "./format.js";
import { Lanes } from "./lanes.js";
import { Letters } from "./letters.js";
import { Message } from "./message.js";
import { MicroBatches } from "./micro_batches.js";
import { Queues } from "./queues.js";

const EACH_MS = 2000;
const REASONS_SHOWN = 6;
const byId = (id) => document.getElementById(id);
const views = {
  lanes: new Lanes(byId("lanes")),
  queues: new Queues(byId("queues")),
  "micro-batches": new MicroBatches(byId("micro-batches")),
  message: new Message(byId("message")),
  letters: new Letters(byId("letters")),
};

// Where an address names no view: a job on a cluster does not follow its lanes.
let home = "lanes";
let shown = home;
let isPaused = false;
let isOpen = false;
let timer;
const turns = new Turns();

async function refresh() {
  clearTimeout(timer);
  const isLatest = turns.begin();
  const name = shown;
  const [status, view] = await Promise.allSettled([get("status", { limit: 0 }), views[name].refresh()]);
  if (!isLatest()) return;
  if (status.reason) {
    showProblem(status.reason);
  } else {
    home = status.value.cluster ? "micro-batches" : "lanes";
    if (!isOpen) open();
    showStatus(status.value);
    byId("age").textContent = `as of ${clock(Date.now())}`;
    const isSaid = status.value.not_ready_reasons.includes(view.reason?.message);
    showViewProblem(name, isSaid ? undefined : view.reason);
  }
  const isOther = isOpen && name !== shown;
  if (!isPaused && !document.hidden) timer = setTimeout(refresh, isOther ? 0 : EACH_MS);
}

function open() {
  isOpen = true;
  byId("access").hidden = true;
  for (const id of ["figures", "views", "main"]) byId(id).hidden = false;
  route();
}

function showProblem(error) {
  if (!(error instanceof ApiError)) throw error;
  if (error.status === 401) {
    isOpen = false;
    for (const id of ["figures", "views", "main"]) byId(id).hidden = true;
    byId("access-why").textContent = hasToken() ? error.message : "";
    setState("locked", "warn");
    if (byId("access").hidden) {
      byId("access").hidden = false;
      byId("token").focus();
    }
    return;
  }
  setState(error.status ? "problem" : "no answer", "bad");
  showNotices([[error.message, "bad"]]);
}

// Within the view that has it: the status, and the other views, go on. No error: what was said before goes.
function showViewProblem(name, error) {
  if (error && (!(error instanceof ApiError) || error.status === 401)) {
    showProblem(error);
    return;
  }
  const section = byId(name);
  const text = error?.message ?? "";
  const said = section.querySelector(":scope > .problem");
  if ((said?.textContent ?? "") === text) return;
  said?.remove();
  if (!text) return;
  const problem = notice(text, "bad");
  problem.classList.add("problem");
  problem.setAttribute("role", "alert");
  section.prepend(problem);
}

// Only where they have changed: a screen reader reads them out.
function showNotices(notices) {
  const key = JSON.stringify(notices);
  if (byId("notices").shownKey === key) return;
  byId("notices").shownKey = key;
  byId("notices").replaceChildren(...notices.map(([text, kind]) => notice(text, kind)));
}

function setState(text, kind) {
  byId("state").textContent = text;
  byId("state").className = `badge ${kind}`;
}

function showStatus(status) {
  document.title = `${status.prefix ?? "popstream"} · popstream`;
  byId("prefix").textContent = status.prefix ?? "";
  const reasons = status.not_ready_reasons;
  setState(reasons.length ? "not ready" : "ready", reasons.length ? "bad" : "good");
  const notices = [...reasons, ...status.damage].map((sentence) => [sentence, "bad"]);
  const warn = (sentence) => notices.push([sentence, "warn"]);
  if (status.ops_overdue) warn(`${count(status.ops_overdue)} undecided records are older than half of the retention of the ops topic`);
  if (status.quarantined) warn(`${count(status.quarantined)} records are quarantined: see the table rejected`);
  if (status.snapshot_failure) warn(`the last snapshot failed: ${status.snapshot_failure}`);
  if (status.replica_failure) warn(status.replica_failure);
  status.table_checkpoint_failures.forEach(warn);
  showNotices(notices);
  byId("owner").replaceChildren(...owner(status));
  byId("figures").replaceChildren(...figures(status));
}

function owner({ owner: found, up_s: upS, kernel_form: kernel }) {
  if (!found) return [];
  const since = `since ${moment(found.since_ms)}, for ${duration(Date.now() - found.since_ms)}`;
  const facts = [
    `process ${found.pid}, up ${duration(upS * 1000)}`,
    found.state ? `state ${found.state}` : "a state that has decided nothing yet",
    `term ${found.term}`,
    `kernel ${kernel}`,
    found.folder,
  ];
  const lines = [
    element("p", {}, "Owned by ", element("strong", {}, found.host), ` ${since}`),
    element("p", { class: "dim" }, facts.join(" · ")),
  ];
  if (found.took_over_from) lines.push(element("p", { class: "dim" }, `Taken over from ${found.took_over_from}`));
  return lines;
}

function figures(status) {
  const totals = status.totals ?? {};
  const steps = Object.values(totals.last_micro_batch_ms ?? {});
  const builder = status.builder;
  const found = [
    ["Operations per second", decimal(status.operations_per_s ?? 0), `${count(totals.operations)} since the start`],
    ["Operations to decide", count(status.ops_lag), `${count(status.apply_seq)} WriteBatches so far`],
    ["Last micro-batch", steps.length ? `${decimal(steps.reduce((sum, ms) => sum + ms, 0))} ms` : "none", totals.last_micro_batch_at_s ? `${duration(Date.now() - totals.last_micro_batch_at_s * 1000)} ago` : ""],
    ["Not in Delta yet", count(Math.max(0, status.apply_seq - (status.delta_seq ?? 0))), "WriteBatches"],
    ["Outbox", bytes(status.outbox_bytes ?? 0), "decided and not delivered"],
    ["Refused", count(totals.refused), byReason(totals.refused_by_reason, "offset runs, since the start")],
    ["Rejected", count(totals.rejected), byReason(totals.rejected_by_reason, "records, since the start")],
    ...(builder ? [["Messages to index", count(builder.behind), `in ${count(builder.queues)} queues`]] : []),
  ];
  return found.map(([name, value, more]) =>
    element("div", {}, element("dt", {}, name), element("dd", { class: "value" }, value), element("dd", { class: "dim small" }, more)),
  );
}

// The job has a few dozen reasons at most: the most frequent ones, and how many others there are.
function byReason(counts, none) {
  const found = Object.entries(counts ?? {}).sort(([, one], [, other]) => other - one);
  if (!found.length) return none;
  const more = found.length > REASONS_SHOWN ? [`${counted(found.length - REASONS_SHOWN, "more reason")}`] : [];
  return [...found.slice(0, REASONS_SHOWN).map(([reason, number]) => `${reason} ${count(number)}`), ...more].join(", ");
}

function named() {
  const [name, query] = location.hash.slice(1).split("?");
  return [name in views ? name : home, new URLSearchParams(query ?? "")];
}

function route() {
  const [name, parameters] = named();
  shown = name;
  for (const view of Object.keys(views)) byId(view).hidden = view !== shown;
  for (const link of document.querySelectorAll("#views a")) {
    if (link.hash === `#${shown}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  views[shown].open?.(parameters);
}

addEventListener("hashchange", () => {
  if (location.hash === "#main") return;
  if (!isOpen) return;
  route();
  refresh();
});
document.addEventListener("visibilitychange", () => !document.hidden && !isPaused && refresh());
byId("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  clearTimeout(timer);
  byId("pause").setAttribute("aria-pressed", String(isPaused));
  byId("pause").textContent = isPaused ? "Go on" : "Pause";
  if (!isPaused) refresh();
});
addEventListener("unhandledrejection", (event) => showViewProblem(shown, event.reason));
byId("access").addEventListener("submit", (event) => {
  event.preventDefault();
  rememberToken(byId("token").value.trim());
  byId("token").value = "";
  refresh();
});
[shown] = named();
refresh();
