// What makes the pages pleasant; nothing here is needed. Live updates, local times, keys, colours, saved queries.
"use strict";
(function () {
  const root = document.body.dataset.root;
  const $ = (selector) => document.querySelector(selector);
  const all = (selector) => Array.from(document.querySelectorAll(selector));
  const store = {
    get(name) { try { return localStorage.getItem("pqrun:" + name); } catch (error) { return null; } },
    set(name, value) { try { localStorage.setItem("pqrun:" + name, value); } catch (error) { /* switched off */ } },
  };
  const say = (text) => { $("#said").textContent = text; };

  // Times
  function paintTimes() {
    const local = store.get("zone") === "local";
    $("#zone").textContent = local ? "local" : "UTC";
    $("#zone").setAttribute("aria-label", "Times in " + (local ? "local time" : "UTC") + ", switch");
    for (const element of all("time")) {
      const moment = new Date(element.dateTime);
      if (isNaN(moment)) continue;
      const iso = moment.toISOString();
      const pad = (number) => String(number).padStart(2, "0");
      const day = local ? `${moment.getFullYear()}-${pad(moment.getMonth() + 1)}-${pad(moment.getDate())}` : iso.slice(0, 10);
      const clock = local ? `${pad(moment.getHours())}:${pad(moment.getMinutes())}:${pad(moment.getSeconds())}` : iso.slice(11, 19);
      const zone = local ? "" : " UTC";
      if (element.dataset.style === "ago") element.title = `${day} ${clock}${zone}`;
      else element.textContent = element.dataset.style === "full" ? `${day} ${clock}${zone}` : `${clock}${zone}`;
    }
  }
  $("#zone").addEventListener("click", () => { store.set("zone", store.get("zone") === "local" ? "utc" : "local"); paintTimes(); });

  // Colours
  const themes = ["auto", "light", "dark"];
  function paintTheme() {
    const theme = themes.includes(store.get("theme")) ? store.get("theme") : "auto";
    if (theme === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = theme;
    $("#theme").textContent = theme;
    $("#theme").setAttribute("aria-label", "Colours: " + theme + ", switch");
    return theme;
  }
  $("#theme").addEventListener("click", () => { store.set("theme", themes[(themes.indexOf(paintTheme()) + 1) % 3]); paintTheme(); });

  // Live: something was written, so the page asks for itself; not while somebody works in it.
  let pending = false;
  const isLive = () => store.get("live") !== "off";
  function isBusy() {
    const at = document.activeElement;
    const works = at && at !== document.body && at.id !== "main" && $("#main").contains(at);
    return document.hidden || works || all("#main input[name=id]:checked").length > 0 || all("#main details[open] form").length > 0;
  }
  function refresh() { if (window.htmx) window.htmx.trigger("#main", "pqrun:changed"); }
  function changed() {
    if (!isLive()) return;
    if (isBusy()) { pending = true; paintLive(); return; }
    pending = false;
    paintLive();
    refresh();
  }
  let source = null;
  let last = 0;
  let timer = 0;
  function heard() {  // at most one refresh in two seconds, the last one never lost
    const wait = Math.max(0, last + 2000 - Date.now());
    clearTimeout(timer);
    timer = setTimeout(() => { last = Date.now(); changed(); }, wait);
  }
  function connect() {
    if (source) { source.close(); source = null; }
    if (!isLive() || !window.EventSource || document.hidden) return;
    source = new EventSource(root + "/events");
    source.addEventListener("changed", heard);
    source.addEventListener("hello", paintLive);  // a stream ends after some seconds; the next one tells what was missed
    source.addEventListener("error", paintLive);
  }
  function paintLive() {
    const button = $("#live");
    const on = isLive();
    button.setAttribute("aria-pressed", String(on));
    const lost = source && source.readyState !== 1 && source.readyState !== 0;
    button.querySelector(".label").textContent = !on ? "paused" : lost ? "offline" : pending ? "changed" : "live";
    button.setAttribute("aria-label", "Live updates: " + button.querySelector(".label").textContent);
  }
  function toggleLive() { store.set("live", isLive() ? "off" : "on"); pending = false; connect(); paintLive(); say("Live updates " + (isLive() ? "on" : "paused")); }
  $("#live").addEventListener("click", () => { if (pending) { pending = false; paintLive(); refresh(); } else toggleLive(); });
  document.addEventListener("visibilitychange", () => { connect(); if (!document.hidden) heard(); });
  document.addEventListener("focusout", () => { if (pending) setTimeout(() => { if (pending && !isBusy()) changed(); }, 300); });
  if (window.Idiomorph) {  // what somebody has opened or ticked stays so
    const keep = (name, element) => !(name === "open" && element.tagName === "DETAILS") && !(name === "checked") && name !== "hidden";
    window.Idiomorph.defaults.callbacks.beforeAttributeUpdated = keep;
  }

  // Rows
  const rows = () => all("#main table[data-keys] tbody tr");
  let current = -1;
  function select(next) {
    const found = rows();
    if (!found.length) return;
    current = Math.min(Math.max(next, 0), found.length - 1);
    found.forEach((row, place) => row.classList.toggle("is-current", place === current));
    const link = found[current].querySelector("a.open");
    if (link) link.focus({ preventScroll: true });
    found[current].scrollIntoView({ block: "nearest" });
  }
  function paintTicks() {
    const count = all("#main input[name=id]:checked").length;
    const ticked = $("#ticked");
    if (ticked) ticked.textContent = count ? `(${count})` : "";
    const every = $("#tick-all");
    if (every) {
      const boxes = all("#main input[name=id]");
      every.hidden = false;
      every.checked = count > 0 && count === boxes.length;
      every.indeterminate = count > 0 && count < boxes.length;
    }
  }
  document.addEventListener("change", (event) => {
    if (event.target.id === "tick-all") for (const box of all("#main input[name=id]")) box.checked = event.target.checked;
    if (event.target.id === "tick-all" || event.target.name === "id") paintTicks();
    if (event.target.id === "keys") store.set("keys", event.target.checked ? "on" : "off");
  });

  // Keys
  const places = { o: "/", j: "/jobs", q: "/queues", e: "/errors", t: "/tasks", s: "/schedules", w: "/workers", a: "/operations", d: "/system" };
  let chord = 0;
  function pressed(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (store.get("keys") === "off" || event.target.closest("input, textarea, select, [contenteditable]")) return;
    const key = event.key;
    if (chord && Date.now() - chord < 1500 && key in places) { chord = 0; location.assign(root + places[key]); event.preventDefault(); return; }
    chord = key === "g" ? Date.now() : 0;
    const found = rows()[current];
    if (key === "/") { const box = $("#q"); if (box) { box.focus(); box.select(); } else location.assign(root + "/jobs"); }
    else if (key === "j") select(current + 1);
    else if (key === "k") select(current - 1);
    else if (key === "x" && found) { const box = found.querySelector("input[name=id]"); if (box) { box.checked = !box.checked; paintTicks(); } }
    else if (key === "r") refresh();
    else if (key === "p") toggleLive();
    else if (key === "?") location.assign(root + "/help");
    else return;
    event.preventDefault();
  }
  document.addEventListener("keydown", pressed);

  // Copying
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    navigator.clipboard.writeText($("#" + button.dataset.copy).textContent).then(() => say("Copied"), () => say("The browser does not allow copying"));
  });

  // Saved queries, in this browser
  function saved() { try { const list = JSON.parse(store.get("saved") || "[]"); return Array.isArray(list) ? list : []; } catch (error) { return []; } }
  function paintSaved() {
    const place = $("#saved");
    if (!place) return;
    place.replaceChildren();
    const query = $("#q").defaultValue;
    for (const [name, text] of saved()) {
      const link = document.createElement("a");
      link.href = place.dataset.base + "?q=" + encodeURIComponent(text);
      link.textContent = name;
      place.append(link);
    }
    if (query) {
      const known = saved().find((one) => one[1] === query);
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = known ? "Forget “" + known[0] + "”" : "Save this query";
      button.addEventListener("click", () => {
        const rest = saved().filter((one) => one[1] !== query);
        if (!known) { const name = window.prompt("A name for this query", query); if (!name) return; rest.push([name.slice(0, 60), query]); }
        store.set("saved", JSON.stringify(rest.slice(-20)));
        paintSaved();
      });
      place.append(button);
    }
    place.hidden = !place.childElementCount;
  }

  function paint() {
    for (const element of all(".switches, [data-copy]")) element.hidden = false;
    $("#keys").checked = store.get("keys") !== "off";
    paintTimes(); paintTheme(); paintLive(); paintTicks(); paintSaved();
    if (current >= 0) { const found = rows(); current = Math.min(current, found.length - 1); found.forEach((row, place) => row.classList.toggle("is-current", place === current)); }
  }
  document.addEventListener("htmx:beforeSwap", (event) => {  // what was done to ticked jobs is done
    if (event.detail.requestConfig.verb === "post") for (const box of all("#main input[name=id]")) box.checked = false;
  });
  document.addEventListener("htmx:afterSettle", paint);
  paint();
  connect();
})();
