// Asks the API of the job that has served this page. The token stays in this tab.

const KEY = "popstream-token";

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export function rememberToken(token) {
  sessionStorage.setItem(KEY, token);
}

export function hasToken() {
  return Boolean(sessionStorage.getItem(KEY));
}

export function get(path, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(given).toString();
  return ask(`/api/v1/${path}${query ? `?${query}` : ""}`, {});
}

/* The requests of a place of the page: an answer may come after the one to a later request, and says nothing any more. */
export class Turns {
  #latest = 0;

  // Returns whether no later turn has begun, each time that it is called.
  begin() {
    const turn = ++this.#latest;
    return () => turn === this.#latest;
  }
}

export function post(path, content) {
  const headers = { "Content-Type": "application/json" };
  return ask(`/api/v1/${path}`, { method: "POST", body: JSON.stringify(content), headers });
}

async function ask(url, options) {
  const token = sessionStorage.getItem(KEY);
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  let response;
  try {
    response = await fetch(url, { ...options, headers, cache: "no-store", credentials: "omit", redirect: "error" });
  } catch {
    throw new ApiError("the job does not answer", 0);
  }
  let content;
  try {
    content = await response.json();
  } catch {
    throw new ApiError(`the job answers with ${response.status} ${response.statusText}`, response.status);
  }
  if (!response.ok) throw new ApiError(content.error ?? `status ${response.status}`, response.status);
  return content;
}
