"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const charts = read("charts");
  const { entries, texts } = read("trajectories");
  const hover = document.getElementById("hover");

  const make = (name, className, text) => {
    const node = document.createElement(name);
    if (className) node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };

  const showHover = (event, build) => {
    hover.replaceChildren();
    build(hover);
    hover.style.visibility = "visible";
    const box = hover.getBoundingClientRect();
    const right = event.clientX + 16 + box.width > window.innerWidth;
    hover.style.left = `${Math.max(4, right ? event.clientX - box.width - 14 : event.clientX + 16)}px`;
    hover.style.top = `${Math.max(4, Math.min(event.clientY + 14, window.innerHeight - box.height - 6))}px`;
  };
  const hideHover = () => { hover.style.visibility = "hidden"; };

  const addRow = (table, left, right, tone) => {
    const row = make("tr");
    const name = make("td");
    if (tone) name.append(make("i", `key t${tone}`), " ");
    name.append(left);
    row.append(name, make("td", "", right));
    table.append(row);
  };

  for (const [id, chart] of Object.entries(charts)) {
    const figure = document.getElementById(id);
    const svg = figure && figure.querySelector("svg");
    if (!svg || !chart.x.length) continue;
    const cursor = svg.querySelector(".cursor");
    svg.addEventListener("pointermove", (event) => {
      const place = svg.getBoundingClientRect();
      const at = ((event.clientX - place.left) / place.width) * svg.viewBox.baseVal.width;
      let best = 0;
      chart.x.forEach((x, i) => { if (Math.abs(x - at) < Math.abs(chart.x[best] - at)) best = i; });
      cursor.setAttribute("x1", chart.x[best]);
      cursor.setAttribute("x2", chart.x[best]);
      cursor.style.visibility = "visible";
      showHover(event, (box) => {
        box.append(make("b", "", chart.labels[best]));
        const table = make("table");
        for (const s of chart.series) if (s.values[best]) addRow(table, s.name, s.values[best], s.tone);
        box.append(table);
      });
    });
    svg.addEventListener("pointerleave", () => { cursor.style.visibility = "hidden"; hideHover(); });
  }

  const theme = document.getElementById("theme");
  theme.addEventListener("click", () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = document.documentElement.style.colorScheme || (dark ? "dark" : "light");
    document.documentElement.style.colorScheme = now === "dark" ? "light" : "dark";
  });

  const settingsSearch = document.getElementById("settings-search");
  if (settingsSearch) settingsSearch.addEventListener("input", () => {
    const wanted = settingsSearch.value.toLowerCase();
    for (const row of document.querySelectorAll("#settings-table tbody tr")) {
      row.hidden = !row.textContent.toLowerCase().includes(wanted);
    }
  });

  const list = document.getElementById("list");
  const detail = document.getElementById("detail");
  if (!list) return;
  const stepField = document.getElementById("step-filter");
  const search = document.getElementById("search");
  const chips = [...document.querySelectorAll(".filters button[data-tag]")];
  const state = { tag: "all", step: "", query: "", chosen: 0, colour: "difference" };

  const at = (column, i) => (Array.isArray(column) ? column[i] : column);
  const tokenText = (id) => (Object.hasOwn(texts, id) ? texts[id] : null);
  const completion = (entry) => {
    if (entry.text !== null) return entry.text;
    const parts = entry.tokens.map(tokenText);
    return parts.some((p) => p === null) ? entry.tokens.join(" ") : parts.join("");
  };
  const number = (value, digits = 4) =>
    value === null || value === undefined ? "–" : value === 0 ? "0" : Number(value.toPrecision(digits)).toString();
  const scoreClass = (entry) => (entry.reward === null ? "none" : entry.success ? "good" : "poor");
  const scoreText = (entry) => (entry.reward === null ? entry.status : number(entry.reward, 3));

  const colours = {
    difference: {
      label: "sampler–trainer difference",
      of: (e, i) => {
        const d = at(e.difference, i);
        if (d === null || d === undefined) return "h0";
        const limits = [1e-4, 1e-3, 1e-2, 0.1, 0.3, 1];
        return `h${limits.filter((l) => Math.abs(d) >= l).length}`;
      },
      keys: [["h0", "< 0.0001"], ["h1", "0.0001"], ["h2", "0.001"], ["h3", "0.01"], ["h4", "0.1"], ["h5", "0.3"], ["h6", "≥ 1"]],
      about: "|log-prob of the trainer − log-prob of the sampler| of each token, nats",
    },
    surprise: {
      label: "surprise",
      of: (e, i) => {
        const s = at(e.sampler, i);
        if (s === null || s === undefined) return "h0";
        return `h${[0.1, 0.5, 1, 2, 4, 7].filter((l) => -s >= l).length}`;
      },
      keys: [["h0", "< 0.1"], ["h1", "0.1"], ["h2", "0.5"], ["h3", "1"], ["h4", "2"], ["h5", "4"], ["h6", "≥ 7"]],
      about: "−log-prob of the sampler of each token, nats",
    },
    advantage: {
      label: "advantage",
      of: (e, i) => {
        const a = at(e.advantage, i);
        if (!a) return "h0";
        return `${a > 0 ? "p" : "n"}${Math.abs(a) >= 1 ? 3 : Math.abs(a) >= 0.3 ? 2 : 1}`;
      },
      keys: [["n3", "≤ −1"], ["n2", "−0.3"], ["n1", "< 0"], ["h0", "0"], ["p1", "> 0"], ["p2", "0.3"], ["p3", "≥ 1"]],
      about: "advantage that multiplied each token in training",
    },
    version: {
      label: "policy version",
      of: (e, i) => { const v = at(e.version, i); return v === null || v === undefined ? "h0" : `v${1 + (v % 4)}`; },
      keys: [],
      about: "one colour per policy version; a change of colour is a weight update in mid-generation",
    },
  };

  const matches = (entry) =>
    (state.tag === "all" || entry.tags.includes(state.tag)) &&
    (state.step === "" || `${entry.kind} ${entry.step}` === state.step) &&
    (state.query === "" || `${entry.id}\n${completion(entry)}\n${entry.prompt.map((m) => m[1]).join("\n")}`.toLowerCase().includes(state.query));

  const drawList = () => {
    const visible = entries.map((e, i) => i).filter((i) => matches(entries[i]));
    if (!visible.includes(state.chosen) && visible.length) state.chosen = visible[0];
    list.replaceChildren();
    for (const i of visible) {
      const entry = entries[i];
      const row = make("li");
      row.setAttribute("role", "option");
      row.setAttribute("aria-selected", String(i === state.chosen));
      row.dataset.index = i;
      row.dataset.id = entry.id;
      row.dataset.status = entry.status;
      row.append(
        make("span", `score ${scoreClass(entry)}`, entry.reward === null ? "none" : scoreText(entry)),
        make("span", "said", completion(entry).trim().replace(/\s+/g, " ") || "(no text)"),
        make("span", "where", `${entry.kind === "train" ? "" : "evaluation, "}step ${entry.step} · ${entry.length} tokens · ${entry.reward === null ? `${entry.status} · ` : ""}${entry.finish} · ${entry.tags.join(", ")}`),
      );
      list.append(row);
    }
    const selected = list.querySelector('[aria-selected="true"]');
    if (selected) list.scrollTop = selected.offsetTop - list.offsetTop - 40;
    if (!visible.length) list.append(make("p", "empty", "No trajectory matches."));
    drawDetail(visible.length ? entries[state.chosen] : null);
  };

  const badge = (name, value, kind = "") => {
    const node = make("span", `badge ${kind}`, name ? `${name} ` : "");
    node.append(make("b", "", value));
    return node;
  };

  const drawScale = (parent, entry, redraw) => {
    const scale = make("div", "scale");
    const choice = make("select");
    choice.setAttribute("aria-label", "colour tokens by");
    for (const [name, colour] of Object.entries(colours)) {
      const option = make("option", "", colour.label);
      option.value = name;
      option.selected = name === state.colour;
      choice.append(option);
    }
    choice.addEventListener("change", () => { state.colour = choice.value; redraw(); });
    scale.append("colour:", choice);
    for (const [className, label] of colours[state.colour].keys) {
      const key = make("span");
      key.append(make("i", className), label);
      scale.append(key);
    }
    parent.append(scale, make("p", "note", colours[state.colour].about));
  };

  const drawTokens = (entry) => {
    const box = make("div", "tokens");
    if (!entry.tokens.length) box.append(make("span", "mark", "no token was generated"));
    entry.tokens.forEach((id, i) => {
      const text = tokenText(id);
      const outside = at(entry.origin, i) !== 1;
      const classes = [colours[state.colour].of(entry, i)];
      if (outside) classes.push("outside");
      else if (at(entry.trained, i) === 0) classes.push("untrained");
      const span = make("span", classes.join(" "));
      span.dataset.token = i;
      if (text === null) span.textContent = `${id} `;
      else for (const piece of text.split(/(\n)/)) {
        if (piece === "\n") span.append(make("span", "mark", "⏎"), "\n");
        else if (piece) span.append(piece);
      }
      box.append(span);
    });
    if (entry.tokens.length < entry.shown_of) {
      box.append(make("span", "mark", ` … the first ${entry.tokens.length} of ${entry.shown_of} tokens are in this file`));
    }
    box.addEventListener("pointermove", (event) => {
      const span = event.target.closest("[data-token]");
      if (!span) return hideHover();
      const i = Number(span.dataset.token);
      return showHover(event, (panel) => {
        const text = tokenText(entry.tokens[i]);
        panel.append(make("b", "mono", text === null ? `token ${entry.tokens[i]}` : JSON.stringify(text)));
        const table = make("table");
        const sampler = at(entry.sampler, i);
        const difference = at(entry.difference, i);
        const trainer = sampler === null || difference === null ? null : sampler + difference;
        addRow(table, "token id", String(entry.tokens[i]));
        addRow(table, "log-prob, sampler", number(sampler));
        addRow(table, "log-prob, trainer", number(trainer));
        addRow(table, "trainer − sampler", number(difference, 3));
        addRow(table, "log-prob, reference", number(at(entry.reference, i)));
        addRow(table, "advantage", number(at(entry.advantage, i), 3));
        addRow(table, "policy version", at(entry.version, i) === null ? "none" : String(at(entry.version, i)));
        addRow(table, "trained on", { 0: "no", 1: "yes" }[at(entry.trained, i)] ?? "not recorded");
        panel.append(table);
      });
    });
    box.addEventListener("pointerleave", hideHover);
    return box;
  };

  const drawDetail = (entry) => {
    detail.replaceChildren();
    if (!entry) return;
    detail.dataset.id = entry.id;
    detail.append(make("div", "mono", entry.id));
    const badges = make("div", "badges");
    badges.append(badge(entry.reward === null ? "no reward:" : "reward", scoreText(entry), scoreClass(entry)));
    for (const [name, value] of entry.parts) badges.append(badge(name, value === null ? "does not apply" : number(value, 3)));
    badges.append(badge("finish", entry.finish), badge("tokens", String(entry.length)), badge("step", String(entry.step)));
    badges.append(badge("", entry.kind), badge("temperature", number(entry.temperature)));
    if (entry.seconds !== null) badges.append(badge("took", `${number(entry.seconds, 3)} s`));
    if (entry.retry) badges.append(badge("retry", String(entry.retry)));
    if (entry.attempt > 1) badges.append(badge("attempt", String(entry.attempt)));
    if (entry.version_span) badges.append(badge("policy version", entry.version_span));
    detail.append(badges);
    const reason = entry.reason || entry.failure;
    if (reason) detail.append(make("h3", "", entry.reward === null ? "Why there is no reward" : "How it was graded"), make("div", "text reason", reason));
    detail.append(make("h3", "", "Prompt"));
    for (const [role, content] of entry.prompt) {
      const turn = make("div", "turn");
      turn.append(make("span", "", role), make("div", "", content));
      detail.append(turn);
    }
    if (entry.gold !== null) detail.append(make("h3", "", "Right answer"), make("div", "text mono", entry.gold));
    detail.append(make("h3", "", "Completion"));
    // A token can be a part of a character; then the tokens alone cannot be read.
    const readable = entry.tokens.every((id) => tokenText(id) !== null && !tokenText(id).includes("\ufffd"));
    if (!readable && entry.text !== null) detail.append(make("div", "text mono", entry.text));
    drawScale(detail, entry, () => drawDetail(entry));
    detail.append(drawTokens(entry));
    if (entry.group.length) {
      detail.append(make("h3", "", "Its group: rewards of all attempts at this task"));
      const members = make("div", "members");
      entry.group.forEach(([index, value]) => members.append(make("span", index === entry.index ? "here" : "", value)));
      detail.append(members);
    }
  };

  const choose = (index) => {
    state.chosen = index;
    for (const row of list.children) row.setAttribute("aria-selected", String(Number(row.dataset.index) === index));
    drawDetail(entries[index]);
    detail.scrollTop = 0;
  };
  list.addEventListener("click", (event) => {
    const row = event.target.closest("li");
    if (row) choose(Number(row.dataset.index));
  });
  list.addEventListener("keydown", (event) => {
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    const rows = [...list.querySelectorAll("li")];
    const next = rows[rows.findIndex((r) => r.getAttribute("aria-selected") === "true") + move];
    if (next) { choose(Number(next.dataset.index)); next.scrollIntoView({ block: "nearest" }); }
  });
  for (const chip of chips) chip.addEventListener("click", () => {
    state.tag = chip.dataset.tag;
    for (const other of chips) other.setAttribute("aria-pressed", String(other === chip));
    drawList();
  });
  stepField.addEventListener("change", () => { state.step = stepField.value; drawList(); });
  search.addEventListener("input", () => { state.query = search.value.toLowerCase(); drawList(); });

  const linked = new URLSearchParams(location.hash.slice(1)).get("trajectory");
  if (linked !== null) {
    const index = entries.findIndex((e) => e.id === linked);
    if (index >= 0) state.chosen = index;
  }
  drawList();
  if (linked !== null) list.closest("section").scrollIntoView();
})();
