// Keeps what is live on a page up to date: listens to the server, and says so when it is away.
// An element with data-live="URL" listens there; each change sends "live" to the page's body, which
// is what the parts with hx-trigger="live from:body" wait for.
(() => {
  const source = document.querySelector("[data-live]");
  const notice = document.getElementById("connection");
  if (!source || !notice || !window.EventSource) return;
  let events, lost = false, timer, hidden;

  const say = (text, state) => {
    notice.textContent = text;
    notice.dataset.state = state;
    notice.hidden = !text;
  };
  const refresh = () => document.body.dispatchEvent(new CustomEvent("live"));
  const changed = () => {
    clearTimeout(timer);
    timer = setTimeout(refresh, 50);
  };

  function connect() {
    events = new EventSource(source.dataset.live);
    events.addEventListener("changed", changed);
    events.onopen = () => {
      refresh(); // whatever happened since the page was made, or meanwhile
      if (!lost) return;
      lost = false;
      say("Connected again.", "back");
      setTimeout(() => { if (!lost) say("", ""); }, 4000);
    };
    events.onerror = () => {
      lost = true;
      say("The server cannot be reached. Trying again; what you see may be old.", "lost");
      if (events.readyState === EventSource.CLOSED) { // an answer that is no stream: try later
        events.close();
        refresh(); // the page may show why
        setTimeout(() => { if (!hidden && source.isConnected) connect(); }, 3000);
      }
    };
  }
  // A page that is not looked at needs no connection: browsers have few for one server.
  document.addEventListener("visibilitychange", () => {
    hidden = document.hidden;
    if (hidden) {
      events.close();
    } else if (events.readyState === EventSource.CLOSED) {
      connect();
      refresh();
    }
  });
  addEventListener("pagehide", () => events.close());
  connect();
})();
