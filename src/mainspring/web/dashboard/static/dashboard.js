"use strict";
// The script of the dashboard: live updates, keys, theme, quick forms. Every page works without it.

(() => {
  const root = document.documentElement;
  const body = document.body;
  root.classList.add("has-script");

  // -- live updates: one stream of server-sent events, while the page is visible

  const indicator = document.querySelector("[data-live-state]");
  let stream = null;

  function showState(state, text) {
    if (indicator) {
      indicator.dataset.state = state;
      indicator.textContent = text;
    }
  }

  function openStream() {
    const url = body.dataset.liveUrl;
    if (!url || stream || document.hidden) return;
    stream = new EventSource(url);
    stream.addEventListener("open", () => showState("on", "live"));
    stream.addEventListener("blocks", (event) => {
      const blocks = JSON.parse(event.data);
      for (const [name, html] of Object.entries(blocks)) {
        const place = document.querySelector(`[data-live="${name}"]`);
        if (place) swap(place, html);
      }
      showState("on", "live");
    });
    stream.addEventListener("age", (event) => {
      const seconds = Number(event.data);
      showState("on", seconds ? `${rough(seconds)} old` : "live");
    });
    stream.addEventListener("end", () => { closeStream(); location.reload(); });
    stream.addEventListener("error", () => {
      showState("off", "connecting …");
      if (stream && stream.readyState === EventSource.CLOSED) {
        closeStream();
        setTimeout(openStream, 5000);
      }
    });
  }

  function closeStream() {
    if (stream) stream.close();
    stream = null;
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { closeStream(); showState("", "paused"); } else openStream();
  });
  window.addEventListener("pagehide", closeStream);
  window.addEventListener("pageshow", openStream);

  // Changes the content of an element to match new markup. Elements that stay the same are kept, so that the focus,
  // a selection, an open <details> and what was typed stay as they are.
  function swap(place, html) {
    const template = document.createElement("template");
    template.innerHTML = html;
    morphChildren(place, template.content);
    place.dispatchEvent(new CustomEvent("swapped", { bubbles: true }));
  }

  const keyOf = (node) => (node.nodeType === 1 ? node.id || node.dataset?.key || "" : "");
  const isSameKind = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

  function morphChildren(from, to) {
    const keyed = new Map();
    for (const child of from.childNodes) {
      const key = keyOf(child);
      if (key) keyed.set(key, child);
    }
    let old = from.firstChild;
    for (const fresh of [...to.childNodes]) {
      const key = keyOf(fresh);
      const match = key ? keyed.get(key) : null;
      if (match && isSameKind(match, fresh)) {
        if (match === old) old = old.nextSibling;
        else from.insertBefore(match, old);
        morph(match, fresh);
      } else if (old && !key && isSameKind(old, fresh)) {
        const next = old.nextSibling;
        morph(old, fresh);
        old = next;
      } else {
        from.insertBefore(fresh, old);
      }
    }
    while (old) {
      const next = old.nextSibling;
      old.remove();
      old = next;
    }
  }

  function morph(from, to) {
    if (from.nodeType !== 1) {
      if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
      return;
    }
    if (from.hasAttribute("data-keep") || from.isEqualNode(to)) return;
    for (const { name, value } of [...to.attributes]) {
      if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    }
    for (const { name } of [...from.attributes]) {
      const isState = name === "data-current" || name === "aria-busy" || (name === "open" && from.nodeName === "DETAILS");
      if (!to.hasAttribute(name) && !isState) from.removeAttribute(name);
    }
    const isTyped = from.nodeName === "TEXTAREA" || from.nodeName === "SELECT";
    if (!isTyped) morphChildren(from, to);
  }

  // -- times: relative ones grow older by themselves

  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  let skew = 0; // how much the server's clock is ahead of the browser's, in milliseconds
  if (body.dataset.now) skew = Date.parse(body.dataset.now) - Date.now();

  function rough(seconds) {
    for (const [size, unit] of UNITS) if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
    return "0 s";
  }

  function refreshTimes() {
    if (document.hidden) return;
    const now = Date.now() + skew;
    for (const element of document.querySelectorAll("time[data-relative]")) {
      const seconds = (now - Date.parse(element.dateTime)) / 1000;
      let text = "now";
      if (Math.abs(seconds) >= 1) text = seconds > 0 ? `${rough(seconds)} ago` : `in ${rough(-seconds)}`;
      if (element.textContent !== text) element.textContent = text;
    }
  }
  setInterval(refreshTimes, 1000);

  // -- theme: light, dark, or that of the system

  function setTheme(theme) {
    const path = body.dataset.root || "/";
    if (theme) {
      root.dataset.theme = theme;
      document.cookie = `mainspring_theme=${theme}; path=${path}; max-age=31536000; samesite=strict`;
    } else {
      delete root.dataset.theme;
      document.cookie = `mainspring_theme=; path=${path}; max-age=0; samesite=strict`;
    }
    for (const button of document.querySelectorAll("[data-theme-form] button")) {
      button.setAttribute("aria-pressed", String(button.value === (theme || "system")));
    }
  }

  for (const form of document.querySelectorAll("[data-theme-form]")) {
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const value = event.submitter ? event.submitter.value : "system";
      setTheme(value === "system" ? "" : value);
    });
  }

  // -- messages

  function toast(message, kind) {
    const list = document.querySelector(".toasts");
    const note = document.createElement("div");
    note.className = `note ${kind}`;
    note.textContent = message;
    list.append(note);
    setTimeout(() => note.remove(), kind === "error" ? 12000 : 5000);
  }

  // -- forms: `data-confirm` asks first, `data-quick` is sent without loading the page again

  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (event.defaultPrevented) return;
    const question = event.submitter?.dataset.confirm || form.dataset.confirm;
    if (question && !window.confirm(question)) {
      event.preventDefault();
      return;
    }
    if (!("quick" in form.dataset)) return;
    event.preventDefault();
    const button = event.submitter;
    const data = new URLSearchParams(new FormData(form, button));
    button?.setAttribute("aria-busy", "true");
    try {
      const answer = await fetch(form.action, { method: "POST", body: data, headers: { Accept: "application/json" } });
      const done = await answer.json();
      if (done.location) { location.assign(done.location); return; }
      toast(done.message || done.detail || answer.statusText, done.kind || (answer.ok ? "ok" : "error"));
    } catch {
      toast("The server does not answer. Try again.", "error");
    } finally {
      button?.removeAttribute("aria-busy");
    }
  });

  // A long change of many jobs goes on by itself; each answer has the form of the next step.
  const next = document.querySelector("form[data-continue]");
  if (next) setTimeout(() => next.requestSubmit(), 150);

  document.addEventListener("change", (event) => {
    const element = event.target;
    if ("autosubmit" in element.dataset) element.form.requestSubmit();
    if ("selectAll" in element.dataset) selectAll(element.dataset.selectAll, element.checked);
    else if (element.type === "checkbox") showSelection();
  });

  // Selected rows: the bar with their actions is hidden until a row is selected.
  function boxesOf(name) {
    return [...document.querySelectorAll(`[data-rows] input[type=checkbox][name="${name}"]`)];
  }

  function showSelection() {
    for (const place of document.querySelectorAll("[data-selected-of]")) {
      const number = boxesOf(place.dataset.selectedOf).filter((box) => box.checked).length;
      place.hidden = !number;
      const shown = place.querySelector("[data-selected-count]");
      if (shown) shown.textContent = String(number);
    }
    for (const all of document.querySelectorAll("[data-select-all]")) {
      const boxes = boxesOf(all.dataset.selectAll);
      const number = boxes.filter((box) => box.checked).length;
      all.checked = number > 0 && number === boxes.length;
      all.indeterminate = number > 0 && number < boxes.length;
    }
  }

  function selectAll(name, isSelected) {
    for (const box of boxesOf(name)) box.checked = isSelected;
    showSelection();
  }
  document.addEventListener("swapped", showSelection);
  showSelection();

  document.addEventListener("click", async (event) => {
    const copy = event.target.closest("[data-copy]");
    if (copy) {
      try {
        await navigator.clipboard.writeText(copy.dataset.copy);
        toast("Copied.", "ok");
      } catch {
        toast("The browser does not allow copying here.", "error");
      }
    }
    const none = event.target.closest("[data-select-none]");
    if (none) selectAll(none.dataset.selectNone, false);
    const cell = event.target.closest("td.select");
    if (cell && event.target === cell) cell.querySelector("input")?.click(); // the box is small, its cell is not
    const opener = event.target.closest("[data-dialog]");
    if (opener) document.getElementById(opener.dataset.dialog)?.showModal();
    if (event.target.closest("[data-close]")) event.target.closest("dialog")?.close();
  });

  // -- keys

  const help = document.getElementById("help");
  let isGoing = false; // whether `g` was pressed just now
  let goTimer = 0;

  function rows() {
    return [...document.querySelectorAll("[data-rows] [data-row]")];
  }

  function moveTo(step) {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((row) => "current" in row.dataset);
    const next = at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + step));
    for (const row of all) delete row.dataset.current;
    all[next].dataset.current = "";
    all[next].scrollIntoView({ block: "nearest" });
    (all[next].querySelector("a[href]") || all[next]).focus({ preventScroll: true });
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target;
    const isTyping = target.matches?.("input:not([type=checkbox]):not([type=radio]), textarea, select, [contenteditable]");
    if (event.key === "Escape" && isTyping) { target.blur(); return; }
    if (isTyping || document.querySelector("dialog[open]")) return;
    if (isGoing) {
      isGoing = false;
      const entry = document.querySelector(`[data-go="${CSS.escape(event.key)}"]`);
      if (entry) { event.preventDefault(); entry.click(); }
      return;
    }
    const current = document.querySelector("[data-row][data-current]");
    switch (event.key) {
      case "g":
        isGoing = true;
        clearTimeout(goTimer);
        goTimer = setTimeout(() => { isGoing = false; }, 1500);
        break;
      case "j": moveTo(1); break;
      case "k": moveTo(-1); break;
      case "x": {
        const box = current?.querySelector("td.select input");
        if (box) box.click();
        break;
      }
      case "/": {
        const search = document.querySelector("[data-search]");
        if (search) { event.preventDefault(); search.focus(); search.select?.(); } else {
          const jobs = document.querySelector('[data-go="j"]');
          if (jobs) { event.preventDefault(); location.assign(`${jobs.getAttribute("href")}#search`); }
        }
        break;
      }
      case "?": if (help) { event.preventDefault(); help.showModal(); } break;
      default:
    }
  });
  if (location.hash === "#search") document.querySelector("[data-search]")?.focus();

  // -- previews: a form with `data-preview` shows the server's preview of its fields while the user types

  for (const form of document.querySelectorAll("form[data-preview]")) {
    const place = document.getElementById(form.dataset.previewTarget);
    const names = form.dataset.previewFields.split(" ");
    let timer = 0;
    let number = 0; // of the last request: an earlier answer that comes later is dropped
    const show = async () => {
      const mine = ++number;
      const query = new URLSearchParams(names.map((name) => [name, form.elements[name]?.value ?? ""]));
      try {
        const answer = await fetch(`${form.dataset.preview}?${query}`, { headers: { Accept: "text/html" } });
        if (answer.ok && !answer.redirected && mine === number) swap(place, await answer.text());
      } catch { /* the button shows the preview, too */ }
    };
    form.addEventListener("input", (event) => {
      if (!names.includes(event.target.name)) return;
      clearTimeout(timer);
      timer = setTimeout(show, 250);
    });
  }

  // -- the entry of the present page is in view, on a phone, too

  const present = document.querySelector(".nav [aria-current]");
  if (present) present.parentElement.scrollLeft = present.offsetLeft - (present.parentElement.clientWidth - present.offsetWidth) / 2;

  // -- the time zone of the browser, so that the server can show dates in it

  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (zone) document.cookie = `mainspring_zone=${encodeURIComponent(zone)}; path=${body.dataset.root || "/"}; max-age=31536000; samesite=strict`;

  openStream();
})();
