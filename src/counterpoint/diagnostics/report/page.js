"use strict";
// The browser of texts. Whatever models and users wrote enters the page as textContent only.
(() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const texts = data.texts;
  if (!texts.length) return;

  const PAGE = 8; // texts in the list at a time
  const STEPS = [2, 1, 0.5, 0.1]; // nats from which a token is coloured s4, s3, s2, s1
  const SVG = "http://www.w3.org/2000/svg";
  const places = new Map(texts.map((text, place) => [text.key, place]));
  let ranked = []; // places of the texts in the chosen order, as far as they match the search
  let first = 0; // where the list begins in `ranked`
  let shown = -1; // place of the text that is shown
  let chosen = -1; // its chosen token

  function make(name, words, classes) {
    const element = document.createElement(name);
    if (words !== undefined) element.textContent = words;
    if (classes) element.className = classes;
    return element;
  }
  function draw(name, attributes) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  }

  // Figures: whole thousandths of a nat, null where undefined, "∞" or "−∞".
  const number = (fine) => (fine === null ? 0 : fine === "∞" ? Infinity : fine === "−∞" ? -Infinity : fine / 1000);
  function written(fine, sign) {
    if (fine === null) return "—";
    if (typeof fine === "string") return fine;
    const size = Math.abs(fine / 1000);
    const digits = size.toFixed(size < 0.0995 ? 3 : size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
    return (fine < 0 ? "−" : sign && fine > 0 ? "+" : "") + digits;
  }

  // The component that moved a token most, or -1 where none moved it by more than 0.1 nats.
  function mover(text, at) {
    let most = -1;
    text.moved.forEach((row, i) => {
      if (Math.abs(number(row[at])) > (most < 0 ? 0.1 : Math.abs(number(text.moved[most][at])))) most = i;
    });
    return most;
  }
  const hue = (i) => `c${i % data.hues}`;

  // The list of texts.
  const words = (text) => text.prompt.map((turn) => turn[1]).join("\n").toLowerCase();
  const opening = (text) => (text.prompt.at(-1)?.[1] ?? "").trim().slice(0, 160) || "(empty prompt)";
  function rank(order, search) {
    const key = order === "partition" ? "worstLogZ" : "worstGap";
    const measure = (place) => (texts[place][key] === null ? -1 : number(texts[place][key]));
    ranked = texts.map((_, place) => place);
    if (order !== "file") ranked.sort((a, b) => measure(b) - measure(a) || a - b);
    const sought = search.trim().toLowerCase();
    if (sought) ranked = ranked.filter((place) => words(texts[place]).includes(sought));
    first = 0;
  }
  function list() {
    byId("list").replaceChildren(
      ...ranked.slice(first, first + PAGE).map((place) => {
        const text = texts[place];
        const button = make("button");
        button.type = "button";
        button.append(
          make("span", opening(text), "start"),
          make("span", `${text.key} · gap ${written(text.worstGap)} · |log Z| ${written(text.worstLogZ)}`, "marks"),
        );
        button.firstChild.dir = "auto";
        if (place === shown) button.setAttribute("aria-current", "true");
        button.addEventListener("click", () => go(place, texts[place].worstAt));
        const item = make("li");
        item.append(button);
        return item;
      }),
    );
    const last = Math.min(first + PAGE, ranked.length);
    byId("range").textContent = ranked.length ? `${first + 1}–${last} of ${ranked.length}` : "none";
    byId("earlier").disabled = first === 0;
    byId("later").disabled = last >= ranked.length;
    const at = ranked.indexOf(shown);
    byId("previous").disabled = at <= 0;
    byId("next").disabled = at < 0 ? !ranked.length : at === ranked.length - 1;
  }
  function step(by) {
    const place = ranked[ranked.indexOf(shown) + by];
    if (place !== undefined) go(place, texts[place].worstAt);
  }

  // One text.
  function show(place) {
    shown = place;
    chosen = -1;
    const text = texts[place];
    byId("shown-title").textContent = `Text ${text.key}, ${text.voice}`;
    byId("prompt").replaceChildren(
      ...text.prompt.map(([role, words]) => {
        const turn = make("p");
        if (role) turn.append(make("b", role));
        const content = make("span", words);
        content.dir = "auto";
        turn.append(content);
        return turn;
      }),
    );
    const orphans = new Set(text.orphans);
    let before = "";
    byId("tokens").replaceChildren(
      ...text.tokens.map((token, at) => {
        // A leading space stays outside the colour, so that words stand apart.
        const space = token.length > 1 && token.startsWith(" ") ? " " : "";
        const ink = make("span", token.slice(space.length), "ink");
        const element = make("span", undefined, "tok");
        element.append(space, ink);
        element.setAttribute("role", "button");
        element.tabIndex = -1;
        element.dataset.at = at;
        const most = mover(text, at);
        let letter = "";
        if (most >= 0) {
          const by = number(text.moved[most][at]);
          letter = data.letters[most] + (by < 0 ? "−" : "");
          const strength = 4 - STEPS.findIndex((nats) => Math.abs(by) >= nats || nats === 0.1);
          element.className += ` ${hue(most)} u${most % data.underlines} s${strength}${by < 0 ? " against" : ""}`;
          if (letter !== before) ink.dataset.letter = letter;
        }
        before = letter;
        if (orphans.has(at)) element.className += " orphan";
        return element;
      }),
    );
    if (!text.tokens.length) byId("tokens").textContent = "The continuation is empty.";
    score(text);
    const at = ranked.indexOf(place);
    if (at >= 0 && (at < first || at >= first + PAGE)) first = at - (at % PAGE);
    list();
  }

  // The score: a staff for each component, how far it moved each token; below them log Z.
  function score(text) {
    const length = text.tokens.length;
    const rows = [...text.moved, text.logZ];
    const box = byId("score");
    box.replaceChildren();
    if (!length) return;
    const names = make("div", undefined, "names");
    for (const letter of [...data.letters, "log Z"]) names.append(make("span", letter));
    const svg = draw("svg", { viewBox: `0 0 ${length} ${rows.length * 2}`, preserveAspectRatio: "none" });
    svg.style.height = `${rows.length * 1.75}rem`;
    svg.style.maxWidth = `${length * 1.5}rem`;
    svg.append(draw("rect", { class: "here", y: 0, width: 1, height: rows.length * 2, x: -2 }));
    const sizes = rows.flat().map((fine) => Math.abs(number(fine))).filter(Number.isFinite);
    const largest = sizes.reduce((a, b) => Math.max(a, b), 1);
    rows.forEach((row, i) => {
      const middle = 2 * i + 1;
      const bars = row.map((fine, at) => {
        const height = Math.max(-1, Math.min(1, number(fine) / largest)) * 0.95 || 0;
        return height ? `M${at + 0.1} ${middle}v${(-height).toFixed(3)}h.8v${height.toFixed(3)}z` : "";
      });
      svg.append(
        draw("path", { class: "staff", d: `M0 ${middle}H${length}` }),
        draw("path", { class: i < text.moved.length ? `bars ${hue(i)}` : "bars z", d: bars.join("") || "M0 0" }),
      );
    });
    svg.addEventListener("click", (event) => {
      const frame = svg.getBoundingClientRect();
      go(shown, Math.min(length - 1, Math.floor(((event.clientX - frame.left) / frame.width) * length)));
    });
    box.append(names, svg, make("p", `a full bar is ${written(1000 * largest)} nats`));
  }

  // One token.
  function numbers(at) {
    const text = texts[shown];
    const panel = byId("numbers");
    panel.hidden = !text.tokens.length;
    if (panel.hidden) return;
    const here = document.querySelector("#score .here");
    if (here) here.setAttribute("x", at);
    const most = mover(text, at);
    const table = make("table");
    const head = table.createTHead().insertRow();
    for (const title of ["nats", "moved", "activity", "gap"]) {
      const cell = make("th", title);
      cell.scope = "col";
      head.append(cell);
    }
    const body = table.createTBody();
    data.components.forEach((name, i) => {
      const row = body.insertRow();
      const title = make("th");
      title.scope = "row";
      title.append(make("span", data.letters[i], `badge ${hue(i)} u${i % data.underlines}`), " ", make("bdi", name));
      row.append(title);
      const cells = [written(text.moved[i][at], true), written(text.activity[i][at]), written(text.gap[i][at])];
      for (const words of cells) row.append(make("td", words));
      if (i === most) row.className = "most";
    });
    const rest = make("table");
    for (const [title, words] of [
      ["log p̂, composed", written(text.logP[at])],
      ["log p_b, base", written(text.logB[at])],
      ["log Z", written(text.logZ[at], true)],
      ["favourite is an orphan", text.orphans.includes(at) ? "yes" : "no"],
    ]) {
      const row = rest.insertRow();
      const cell = make("th", title);
      cell.scope = "row";
      row.append(cell, make("td", words));
    }
    const word = text.tokens[at].trim() || text.tokens[at];
    panel.replaceChildren(make("h4", word), make("p", `token ${at + 1} of ${text.tokens.length}`), table, rest);
    if (text.gap.some((row) => row[at] === null)) panel.append(make("p", "— undefined, as the gap is where a component is not active"));
    panel.firstChild.dir = "auto";
  }
  function choose(at) {
    const tokens = byId("tokens").children;
    if (!tokens.length) return numbers(0);
    const old = tokens[chosen];
    if (old) {
      old.classList.remove("chosen");
      old.removeAttribute("aria-pressed");
      old.tabIndex = -1;
    }
    chosen = Math.max(0, Math.min(tokens.length - 1, at));
    const text = texts[shown];
    tokens[chosen].classList.add("chosen");
    tokens[chosen].setAttribute("aria-pressed", "true");
    tokens[chosen].tabIndex = 0;
    numbers(chosen);
    const most = mover(text, chosen);
    const moved = most < 0 ? "moved by none" : `moved ${written(text.moved[most][chosen], true)} by ${data.components[most]}`;
    byId("spoken").textContent = `${text.tokens[chosen]}: ${moved}, log Z ${written(text.logZ[chosen], true)}`;
  }

  // The address: #text=KEY&token=N, N from 1.
  function go(place, at) {
    const other = place !== shown;
    if (other) show(place);
    choose(at);
    const address = `#text=${texts[place].key}${chosen >= 0 ? `&token=${chosen + 1}` : ""}`;
    if (address === location.hash) return;
    if (other) location.hash = address;
    else location.replace(address);
  }
  function follow() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const place = places.get(asked.get("text"));
    if (place === undefined) return false;
    const at = asked.has("token") ? Number(asked.get("token")) - 1 || 0 : texts[place].worstAt;
    if (place !== shown) show(place);
    if (at !== chosen) choose(at);
    return true;
  }
  function reveal() {
    const token = byId("tokens").children[chosen] || byId("shown-title");
    token.focus({ preventScroll: true });
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    token.scrollIntoView({ block: "center", behavior: still ? "auto" : "smooth" });
  }

  const at = (event) => {
    const token = event.target.closest(".tok");
    return token ? Number(token.dataset.at) : -1;
  };
  byId("tokens").addEventListener("click", (event) => at(event) >= 0 && go(shown, at(event)));
  byId("tokens").addEventListener("focusin", (event) => at(event) >= 0 && at(event) !== chosen && go(shown, at(event)));
  byId("tokens").addEventListener("pointerover", (event) => at(event) >= 0 && numbers(at(event)));
  byId("tokens").addEventListener("pointerleave", () => numbers(Math.max(0, chosen)));
  byId("tokens").addEventListener("keydown", (event) => {
    const last = texts[shown].tokens.length - 1;
    const to = { ArrowRight: chosen + 1, ArrowLeft: chosen - 1, ArrowDown: chosen + 1, ArrowUp: chosen - 1, Home: 0, End: last };
    if (!(event.key in to) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    go(shown, to[event.key]);
    byId("tokens").children[chosen].focus();
  });
  const again = () => {
    rank(document.querySelector("input[name=order]:checked").value, byId("find").value);
    list();
  };
  for (const radio of document.getElementsByName("order")) radio.addEventListener("change", again);
  byId("find").addEventListener("input", again);
  byId("earlier").addEventListener("click", () => { first = Math.max(0, first - PAGE); list(); });
  byId("later").addEventListener("click", () => { first += PAGE; list(); });
  byId("previous").addEventListener("click", () => step(-1));
  byId("next").addEventListener("click", () => step(1));
  addEventListener("hashchange", follow);
  document.querySelector(".worst")?.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link) return;
    event.preventDefault();
    if (link.hash !== location.hash) location.hash = link.hash;
    follow();
    reveal();
  });

  byId("browser").hidden = false;
  rank("gap", "");
  if (follow()) reveal();
  else {
    show(ranked[0]);
    choose(texts[ranked[0]].worstAt);
  }
})();
