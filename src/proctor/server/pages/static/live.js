// Follow a run in progress: poll its counts, and reload the page when it has ended.

(() => {
  const place = document.getElementById("live");
  if (!place) return;
  const every = 2000;
  const many = (number) => number.toLocaleString("en");
  let done = Number(place.dataset.done);
  const planned = Number(place.dataset.planned);
  if (done >= planned) return;
  const follow = async () => {
    const reply = await fetch(`${place.dataset.base}/progress`).catch(() => null);
    if (!reply || !reply.ok) return setTimeout(follow, 5 * every);
    const now = await reply.json();
    if (now.done !== done) {
      done = now.done;
      const rate = now.judged ? `, ${many(now.passed)} of ${many(now.judged)} passed` : "";
      place.textContent = `${many(now.done)} of ${many(now.planned)} trials${rate}`;
      const bar = document.getElementById("live-bar");
      if (bar) bar.value = now.done;
    }
    if (now.ended) return location.reload();
    return setTimeout(follow, every);
  };
  setTimeout(follow, every);
})();
