// The list of the files that were dropped or picked, and the words beside the fields of the form.
window.ferrymanList = (() => {
  const { dropped, picked, choose, size, count, isArchive, isEntry } = window.ferrymanFiles;
  const part = (id) => document.getElementById(id);
  const form = part("upload");
  const SHOWN = 200; // files of the list
  const service = part("f-service"), script = part("f-script"), expand = part("f-expand");
  const keep = form.elements.keep;
  const chosen = new Map(); // name -> file
  let leftOut = [];

  // -- words beside the fields

  const sentence = (text) => {
    const whole = text ? text[0].toUpperCase() + text.slice(1) : "";
    return !whole || /[.!?]$/.test(whole) ? whole : `${whole}.`;
  };

  function tell(place, text) {
    if (!place) return;
    place.textContent = sentence(text);
    place.hidden = !text;
  }

  function tellError(name, text) {
    const place = part(`e-${name}`);
    if (!place) return false;
    tell(place, text);
    const input = part(`f-${name}`);
    if (text) input?.setAttribute("aria-invalid", "true");
    else input?.removeAttribute("aria-invalid");
    if (text) place.closest("details")?.setAttribute("open", "");
    return true;
  }

  // -- the files

  const names = () => [...chosen.keys()];
  const total = () => [...chosen.values()].reduce((sum, file) => sum + file.size, 0);
  const oneArchive = () => chosen.size === 1 && isArchive(names()[0]) && !script.value.trim();
  const expands = () => oneArchive() && expand.checked;
  const hasEntry = () => expands() || names().some(isEntry) || script.value.trim() !== "" || Boolean(keep?.checked);

  function row(name, file) {
    const line = document.createElement("li"), label = document.createElement("span"), bytes = document.createElement("span");
    const button = document.createElement("button");
    label.className = "file-name";
    label.textContent = name;
    bytes.className = "file-size";
    bytes.textContent = size(file.size);
    button.type = "button";
    button.className = "small quiet";
    button.textContent = "Remove";
    button.setAttribute("aria-label", `Remove ${name}`);
    button.addEventListener("click", () => {
      const next = line.nextElementSibling ?? line.previousElementSibling;
      chosen.delete(name);
      line.remove();
      show(false);
      (next?.querySelector("button") ?? part("f-file")).focus();
    });
    if (isEntry(name)) line.dataset.entry = "";
    line.dataset.name = name;
    line.append(label, bytes, button);
    return line;
  }

  function show(list = true) {
    part("chosen").hidden = !chosen.size && !leftOut.length;
    part("total").textContent = `${count(chosen.size, "file")}, ${size(total())}`;
    if (list) {
      const sorted = [...chosen].sort(([a], [b]) => isEntry(b) - isEntry(a) || (a < b ? -1 : 1));
      part("file-list").replaceChildren(...sorted.slice(0, SHOWN).map(([name, file]) => row(name, file)));
    }
    part("file-list").hidden = !chosen.size;
    tell(part("more"), chosen.size > SHOWN ? `And ${(chosen.size - SHOWN).toLocaleString("en")} more` : "");
    part("expand").hidden = !oneArchive();
    part("left-out").hidden = !leftOut.length;
    if (leftOut.length) {
      const tops = [...new Set(leftOut.flatMap((one) => one.names))];
      const more = tops.length > 5 ? ` and ${tops.length - 5} more` : "";
      part("left-out").querySelector("span").textContent = `Left out, ${count(leftOut.reduce((sum, one) => sum + one.left.length, 0), "file")}: ${tops.slice(0, 5).join(", ")}${more}.`;
    }
    part("ready").textContent = chosen.size || script.value.trim() ? `${count(chosen.size + (script.value.trim() && !names().some(isEntry) ? 1 : 0), "file")}, ${size(total() + script.value.length)}` : "";
    warn();
  }

  function warn() {
    const most = Number(service?.selectedOptions?.[0]?.dataset.most || form.dataset.mostBytes), words = [];
    if (chosen.size && !hasEntry()) words.push("There is no run.sh among the files: write one above, or add it.");
    if (script.value.trim() && names().some(isEntry)) words.push("A run.sh is among the files: what is written above is not used.");
    if (total() > most) words.push(`These are ${size(total())}; the most that may be sent is ${size(most)}.`);
    if (chosen.size > Number(form.dataset.mostFiles)) words.push(`These are ${count(chosen.size, "file")}; the most that may be sent is ${Number(form.dataset.mostFiles).toLocaleString("en")}.`);
    tell(part("warning"), words.join(" "));
  }

  async function add(groups) {
    tellError("file", "");
    for (const { top, isFolder, files } of groups) {
      let taken = files;
      if (isFolder) {
        const inside = files.map((one) => ({ ...one, name: one.name.slice(top.length + 1) }));
        // A folder by itself stands for what is in it, and so does one with a run.sh.
        const asRoot = groups.length === 1 && (!chosen.size || inside.some((one) => one.name === "run.sh"));
        const prefix = asRoot ? "" : `${top}/`;
        const found = await choose(inside);
        const named = (one) => ({ ...one, name: prefix + one.name });
        taken = found.taken.map(named);
        if (found.left.length) leftOut.push({ names: found.names.map((one) => prefix + one), left: found.left.map(named) });
      }
      for (const { name, file } of taken) chosen.set(name, file);
    }
    show();
  }

  const guarded = async (groups) => {
    try {
      await add(await groups);
    } catch (problem) {
      tellError("file", `The browser could not read what was chosen: ${problem.message}`);
    }
  };
  for (const input of [part("f-file"), part("f-folder"), part("f-archive")]) {
    input.addEventListener("change", () => {
      guarded(picked([...input.files]));
      input.value = ""; // they are in the list now
    });
  }
  const drop = part("drop");
  const hasFiles = (event) => event.dataTransfer && [...event.dataTransfer.types].includes("Files");
  addEventListener("dragover", (event) => {
    if (!hasFiles(event) || form.hidden) return;
    event.preventDefault(); // or the browser would open what is dropped beside the zone
    drop.classList.add("over");
  });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) drop.classList.remove("over"); });
  addEventListener("drop", (event) => {
    if (!hasFiles(event) || form.hidden) return;
    event.preventDefault();
    drop.classList.remove("over");
    guarded(dropped(event.dataTransfer));
  });
  part("clear").addEventListener("click", () => { chosen.clear(); leftOut = []; show(); part("f-file").focus(); });
  part("left-out").querySelector("button").addEventListener("click", () => {
    for (const { left } of leftOut) for (const { name, file } of left) chosen.set(name, file);
    leftOut = [];
    show();
  });
  expand.addEventListener("change", () => show(false));
  keep?.addEventListener("change", () => show(false));
  script.addEventListener("input", () => { tellError("script", ""); show(false); });
  part("use-example").addEventListener("click", () => {
    if (!script.value.trim()) script.value = part("example").content.textContent;
    script.focus();
    show(false);
  });

  return { chosen, show, warn, hasEntry, expands, names, sentence, tell, tellError };
})();
