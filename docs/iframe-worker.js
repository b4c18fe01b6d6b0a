// Search on pages that are opened from a file system: browsers start no worker there, so its script runs in a hidden frame.
// The theme looks for IFrameWorker and for this file's name; without it, it would load a script of that name from elsewhere.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.documentElement.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.importScripts = (...urls) =>
        urls.reduce((before, each) => before.then(() => this.load(each)), Promise.resolve());
      // What the script calls postMessage speaks to us; what we post, its listeners hear.
      inner.postMessage = (data) => this.tell(this, data);
      this.ready = this.load(new URL(url, location.href).href);
    }
    load(url) {
      const script = this.frame.contentDocument.createElement("script");
      script.src = url;
      return new Promise((done, failed) => {
        script.onload = done;
        script.onerror = failed;
        this.frame.contentDocument.body.append(script);
      });
    }
    tell(listener, data) {
      const event = new MessageEvent("message", { data });
      listener.dispatchEvent(event);
      if (listener === this && this.onmessage) this.onmessage(event);
    }
    postMessage(data) {
      this.ready.then(() => this.tell(this.frame.contentWindow, data));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
