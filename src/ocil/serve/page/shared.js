"use strict";
// What all pages use. Whatever comes from the service is shown as text: textContent, value, and image addresses.

const at = (id) => document.getElementById(id);
const percent = (share) => (share === null || share === undefined ? "–" : `${(100 * share).toFixed(1)} %`);
const asJson = (content) => ({ body: JSON.stringify(content), headers: { "Content-Type": "application/json" } });

function make(tag, text, className) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  if (className) node.className = className;
  return node;
}

const reads = (label) => (typeof label === "string" ? label : JSON.stringify(label));

async function request(path, options = {}) {
  return (await fetched(path, options)).json();
}

async function fetched(path, options = {}) {
  const headers = new Headers(options.headers || {});
  const token = sessionStorage.getItem("token");
  if (token) headers.set("Authorization", `Bearer ${token}`);
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401) {
    if (sessionStorage.getItem("token") === token) await askForToken();  // else one was given since this was asked
    return fetched(path, options);
  }
  if (!answer.ok) throw new Error((await answer.json()).detail);
  return answer;
}

// fetch raises a TypeError if nothing answers, and what is not JSON is not from the service. Else it says what is wrong.
const isSilence = (error) => error instanceof TypeError || error instanceof SyntaxError;
const inWords = (error) => (isSilence(error) ? `The service does not answer: ${error.message}` : error.message);

function showProblem(error) {
  at("problem").hidden = false;
  at("problem").textContent = isSilence(error) ? inWords(error) : `The service refuses: ${error.message}`;
}

// Refresh the page now and again while somebody sees it, and show why where that fails.
async function poll(refresh, milliseconds) {
  try {
    if (!document.hidden) await refresh();
  } catch (error) {
    showProblem(error);
  }
  setTimeout(poll, milliseconds, refresh, milliseconds);
}

let asked = null;
function askForToken() {
  asked ??= new Promise((resolve) => {
    const dialog = at("ask");
    at("token").value = "";
    dialog.addEventListener("close", () => {
      const given = at("token").value.trim();
      // Nothing, or what no token can be, such as one in curly quotes: the token stays as it was.
      if (/^[\x21-\x7e]+$/.test(given)) sessionStorage.setItem("token", given);
      offerAnotherToken();
      asked = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asked;
}

// A token may be known and yet be for other models, or for reading alone.
function offerAnotherToken() {
  at("another-token").hidden = !sessionStorage.getItem("token");
}

at("another-token").addEventListener("click", async () => {
  const before = sessionStorage.getItem("token");
  await askForToken();
  if (sessionStorage.getItem("token") !== before) location.reload();
});
offerAnotherToken();

