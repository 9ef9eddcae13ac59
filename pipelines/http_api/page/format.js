// Numbers, times and durations as texts. Times are in the zone of the browser.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const TENTHS = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const NONE = "–";

export function count(number) {
  return number === null || number === undefined ? NONE : WHOLE.format(number);
}

export function decimal(number) {
  return number >= 100 ? WHOLE.format(number) : TENTHS.format(number);
}

export function counted(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

export function bytes(number) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  const unit = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(1, number)) / 10));
  return `${decimal(number / 1024 ** unit)} ${units[unit]}`;
}

export function duration(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export function ago(atMs, nowMs) {
  return atMs ? duration(nowMs - atMs) : NONE;
}

export function moment(ms) {
  const date = new Date(ms);
  if (Number.isNaN(date.getTime())) return `${ms} ms since 1970`;
  const two = (number) => String(number).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${clock(ms)}`;
}

export function clock(ms) {
  const date = new Date(ms);
  const two = (number) => String(number).padStart(2, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}
