// Uploads that have begun, kept by the browser until they have ended, so that a reload loses nothing;
// and which tab has which. A browser that keeps nothing for us (private windows, full disks) makes no
// difference but that.
window.ferrymanStore = (() => {
  const MOST_KEPT = 1 << 30; // bytes of files: the browser copies them
  const OLD_MS = 7 * 86400 * 1000;
  const PATIENCE_MS = 400;

  let opening;
  function opened() {
    opening ??= new Promise((good, bad) => {
      const asked = indexedDB.open("ferryman-uploads", 1);
      asked.onupgradeneeded = () => {
        asked.result.createObjectStore("uploads", { keyPath: "key" });
        asked.result.createObjectStore("files", { keyPath: "key" });
      };
      asked.onsuccess = () => good(asked.result);
      asked.onerror = () => bad(asked.error);
    });
    return opening;
  }

  // What act() asks for, once the transaction is over.
  async function inside(stores, mode, act) {
    const database = await opened();
    return new Promise((good, bad) => {
      const move = database.transaction(stores, mode);
      const asked = act(move);
      move.oncomplete = () => good(asked?.result);
      move.onerror = move.onabort = () => bad(move.error);
    });
  }

  const remove = (key) => inside(["uploads", "files"], "readwrite", (move) => {
    move.objectStore("uploads").delete(key);
    move.objectStore("files").delete(key);
  }).catch(() => {});

  // record: {key, owner, began, …}. Whether the files are kept, too.
  async function keep(record, files) {
    try {
      await inside(["uploads"], "readwrite", (move) => move.objectStore("uploads").put(record));
      if (record.total > MOST_KEPT) return false;
      await inside(["files"], "readwrite", (move) => move.objectStore("files").put({ key: record.key, files }));
      return true;
    } catch {
      return false;
    }
  }

  async function files(key) {
    try {
      return (await inside(["files"], "readonly", (move) => move.objectStore("files").get(key)))?.files ?? null;
    } catch {
      return null;
    }
  }

  // Those of this person that no other tab has.
  async function mine(owner) {
    let all = [];
    try {
      all = await inside(["uploads"], "readonly", (move) => move.objectStore("uploads").getAll());
    } catch {
      return [];
    }
    const found = [];
    for (const one of all) {
      if (Date.now() - one.began > OLD_MS) await remove(one.key);
      else if (one.owner === owner && !await heldElsewhere(one.key)) found.push(one);
    }
    return found;
  }

  // -- tabs ask each other who has an upload

  const channel = window.BroadcastChannel ? new BroadcastChannel("ferryman-uploads") : null;
  let held = null;
  const taken = new Set();
  let onTaken = () => {};
  channel?.addEventListener("message", ({ data }) => {
    if (data.asks && data.asks === held) channel.postMessage({ has: held });
    if (data.has) {
      taken.add(data.has);
      onTaken(data.has);
    }
  });

  async function heldElsewhere(key) {
    if (!channel) return false;
    taken.delete(key);
    channel.postMessage({ asks: key });
    const until = performance.now() + PATIENCE_MS;
    while (performance.now() < until && !taken.has(key)) await new Promise((good) => setTimeout(good, 20));
    return taken.has(key);
  }

  // Make it this tab's; false: another has it.
  async function take(key) {
    if (await heldElsewhere(key)) return false;
    held = key;
    channel?.postMessage({ has: key });
    return true;
  }

  function give() {
    held = null;
  }

  return { keep, files, remove, mine, take, give, whenTaken: (act) => { onTaken = act; } };
})();
