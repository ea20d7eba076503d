// Sends an upload, and goes on until the server has it, under one key: whatever breaks, it becomes one job.
window.ferrymanSend = (() => {
  const { size, count } = window.ferrymanFiles;
  const FIRST_WAIT_S = 1, LONGEST_WAIT_S = 30;
  const RATE_MS = 8000; // the rate is that of so long
  const part = (id) => document.getElementById(id);
  const wait = (ms, wake) => new Promise((good) => {
    const timer = setTimeout(good, ms);
    wake(() => { clearTimeout(timer); good(); });
  });

  function duration(seconds) {
    if (seconds < 60) return `${Math.max(1, Math.round(seconds))} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
    return `${Math.floor(seconds / 3600)} h ${Math.round(seconds % 3600 / 60)} min`;
  }

  class Cancelled extends Error {}

  // One try. {status, body, location, retryAfter}; status 0: the connection broke.
  function once(url, record, files, upload, onBytes) {
    return new Promise((good, bad) => {
      const body = new FormData();
      for (const [name, value] of Object.entries(record.fields)) body.append(name, value);
      for (const { name, file } of files) body.append(record.expand ? "bundle" : "file", file, name);
      const request = new XMLHttpRequest();
      request.open("POST", url);
      request.setRequestHeader("Accept", "application/json");
      request.setRequestHeader("Idempotency-Key", record.key);
      request.upload.onprogress = (event) => onBytes(event.loaded, event.total);
      request.onerror = () => good({ status: 0 });
      request.onabort = () => bad(new Cancelled());
      request.onload = () => {
        let answer = {};
        try { answer = JSON.parse(request.responseText); } catch { /* a proxy's page */ }
        good({
          status: request.status,
          body: answer,
          location: request.getResponseHeader("Location"),
          retryAfter: Number(request.getResponseHeader("Retry-After")) || 0,
        });
      };
      upload.abort = () => request.abort();
      request.send(body);
    });
  }

  // What the upload has become: {job, page}, or {job: null}; null: the server cannot be reached.
  async function become(sentUrl, record) {
    const query = new URLSearchParams({ key: record.key });
    if (record.fields.user_id) query.set("user", record.fields.user_id);
    try {
      const answer = await fetch(`${sentUrl}?${query}`, { headers: { Accept: "application/json" } });
      return answer.ok ? await answer.json() : answer.status >= 500 ? null : { job: null };
    } catch {
      return null;
    }
  }

  // A file that was changed or removed since it was chosen cannot be read any more.
  async function unreadable(files) {
    for (const { name, file } of files) {
      try { await file.slice(0, 1).arrayBuffer(); } catch { return name; }
    }
    return null;
  }

  const worthAnother = (answer) => [0, 408, 502, 503, 504].includes(answer.status) || answer.body?.code === "too_many_uploads";

  class Upload {
    constructor(url, sentUrl) {
      this.url = url;
      this.sentUrl = sentUrl;
      this.cancelled = false;
      this.abort = this.wake = () => {};
      this.samples = [];
      this.spoken = 0;
    }

    cancel() {
      this.cancelled = true;
      this.abort();
      this.wake();
    }

    // {page} of the job, or {refusal} of the server, or {unreadable: name}, or {cancelled: true}
    async run(record, files) {
      part("sending-what").textContent = `${count(files.length, "file")}, ${size(record.total)}, for the service ${record.fields.service}`;
      let tries = 0, waitS = FIRST_WAIT_S;
      try {
        for (;;) {
          if (tries++ > 0 || record.begunBefore) {
            const found = await become(this.sentUrl, record);
            if (this.cancelled) return { cancelled: true };
            if (found?.job) return { page: found.page };
            if (!found) {
              await this.rest("The server cannot be reached", waitS);
              waitS = Math.min(waitS * 2, LONGEST_WAIT_S);
              continue;
            }
            const lost = await unreadable(files);
            if (lost !== null) return { unreadable: lost };
          }
          this.samples = [];
          this.say(tries > 1 ? "Sending again, from the beginning. It stays one job." : "Sending.");
          let furthest = 0;
          const answer = await once(this.url, record, files, this, (loaded, total) => {
            furthest = loaded / total;
            this.show(loaded, total);
          });
          if (answer.status === 201) return { page: answer.location };
          if (!worthAnother(answer)) return { refusal: answer };
          if (furthest > 0.05) waitS = FIRST_WAIT_S; // it does get somewhere
          const why = answer.status ? answer.body?.message ?? `The server answered ${answer.status}` : "The connection broke";
          await this.rest(why, Math.max(waitS, answer.retryAfter ?? 0));
          waitS = Math.min(waitS * 2, LONGEST_WAIT_S);
        }
      } catch (problem) {
        if (!(problem instanceof Cancelled)) throw problem;
        return { cancelled: true };
      }
    }

    async rest(why, seconds) {
      part("sending-bar").removeAttribute("value");
      part("sending-rate").textContent = "";
      document.title = "Waiting · Upload";
      this.say(`${why.replace(/\.$/, "")}. Trying again in ${duration(seconds)}.`);
      const now = part("sending-now");
      now.hidden = false;
      await wait(seconds * 1000, (wake) => { this.wake = wake; });
      now.hidden = true;
      this.wake = () => {};
      if (this.cancelled) throw new Cancelled();
    }

    show(loaded, total) {
      const now = performance.now(), samples = this.samples;
      if (samples.length && now - samples.at(-1).at < 200 && loaded < total) return;
      samples.push({ at: now, loaded });
      while (samples.length > 2 && now - samples[0].at > RATE_MS) samples.shift();
      const seconds = (now - samples[0].at) / 1000, rate = seconds > 0.5 ? (loaded - samples[0].loaded) / seconds : 0;
      const share = total ? loaded / total : 0;
      part("sending-bar").value = Math.round(share * 1000);
      document.title = `${Math.floor(share * 100)} % · Upload`;
      if (loaded >= total) {
        part("sending-rate").textContent = `${size(total)} sent`;
        this.say("All is sent. The server checks and stores it.");
        return;
      }
      const left = rate > 0 ? (total - loaded) / rate : 0;
      const words = [`${size(loaded)} of ${size(total)}`];
      if (rate > 0) words.push(`${size(Math.round(rate))}/s`, `${duration(left)} left`);
      part("sending-rate").textContent = words.join(" · ");
      const quarter = Math.floor(share * 4);
      if (quarter > this.spoken) { // not at each percent: it is read aloud
        this.spoken = quarter;
        this.say(`${quarter * 25} % sent${rate > 0 ? `, about ${duration(left)} left` : ""}.`);
      }
    }

    say(text) {
      part("sending-said").textContent = text;
    }
  }

  return { Upload, become };
})();
