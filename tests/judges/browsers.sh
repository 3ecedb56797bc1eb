#!/bin/bash
# Chromium and Firefox, headless, as an ordinary user: the processes that run a page's scripts are behind filters of system calls,
# which end them for any other call. Both have malloc in their own file, so the library's heap has the rest: its constructors, and
# the calls that it interposes (mmap, madvise, prctl, syscall). Prints the page as Chromium has it after its scripts, and the
# checksum of Firefox's picture of it. The page needs some 50 MB, and waits while its server looks at the process.
. "$(dirname "$0")/common.sh"
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY XDG_RUNTIME_DIR DISPLAY DBUS_SESSION_BUS_ADDRESS
chmod 755 "$work"
mkdir home lib
library=
if [ -n "${DROPIN:-}" ]; then # the directory of the library may be root's alone
    cp -L "$DROPIN" lib/preloaded.so
    [ ! -e "$(dirname "$DROPIN")/libhugepin.so.0" ] || cp -L "$(dirname "$DROPIN")/libhugepin.so.0" lib
    library=$work/lib/preloaded.so
fi
user=()
if [ "$(id -u)" = 0 ]; then
    chown nobody home
    user=(runuser -u nobody --)
fi
cat > page.html <<'E2'
<!DOCTYPE html><title>begun</title><p id="sum"></p><script>
let all = [], sum = 0
for (let i = 0; i < 40; i++) {
    const a = new Uint8Array((1 << 20) + i * 4096)
    for (let k = 0; k < a.length; k += 4096) a[k] = i + k / 4096
    all.push(a)
}
const text = "a line of text ".repeat(20000)
for (let i = 0; i < 300; i++) document.getElementById("sum").setAttribute("data", text.slice(i))
document.getElementById("sum").removeAttribute("data")
</script><script src="held.js"></script>
E2
cat > held.js <<'E2'
for (const a of all) for (let k = 0; k < a.length; k += 4096) sum += a[k]
document.title = document.getElementById("sum").textContent = "the sum is " + sum
E2
# Before it gives held.js away, it writes of each process that runs a page's scripts and has a filter whether the library is there.
cat > serve.py <<'E2'
import http.server, os, sys
library, = sys.argv[1:]
def file(pid, name):
    try:
        with open(f"/proc/{pid}/{name}", "rb") as f: return f.read()
    except OSError:
        return b""
class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/held.js":
            with open("looked", "a") as looked:
                for pid in filter(str.isdigit, os.listdir("/proc")):
                    words = file(pid, "cmdline").replace(b" ", b"\0").strip(b"\0").split(b"\0")
                    if (b"--type=renderer" in words or b"-contentproc" in words and words[-1] == b"tab") \
                            and b"Seccomp:\t2" in file(pid, "status"):
                        print("loaded" if library and library.encode() in file(pid, "maps") else "not loaded", file=looked)
        super().do_GET()
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open("port.new", "w") as f: print(server.server_port, file=f)
os.rename("port.new", "port")
server.serve_forever()
E2
/usr/bin/python3 serve.py "$library" &
server=$!
trap 'kill $server; rm -rf "$work"' EXIT
until [ -e port ]; do kill -0 $server; sleep 0.05; done
url=http://127.0.0.1:$(cat port)/page.html

# browse COMMAND...: as the user, in a home of its own; says whether the processes had filters, and fails without the library there.
browse() {
    local expected='not loaded'
    [ -z "$library" ] || expected=loaded
    rm -f looked
    timed "${user[@]}" env -C home HOME="$work/home" TMPDIR="$work/home" ${library:+LD_PRELOAD="$library"} "$@"
    if [ "$(sort -u looked)" != "$expected" ]; then
        echo "processes with a filter, and the library in them: $(cat looked)" >&2
        return 1
    fi
    echo "$1: its process had a filter"
}
browse chromium --headless --disable-gpu --disable-dev-shm-usage --user-data-dir="$work/home/chromium" --dump-dom "$url"
mkdir -m 777 home/firefox
browse firefox-esr --headless --no-remote --profile "$work/home/firefox" --screenshot "$work/home/picture.png" "$url" 2> /dev/null
cksum < home/picture.png
