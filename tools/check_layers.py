"""Checks every #include against src/LAYERS: layers, public headers, vendor headers."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)

# Headers of the C library, POSIX, Linux and the compiler. Anything else in <> is a vendor's.
SYSTEM = set(
    """assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign stdarg stdatomic
    stdbool stddef stdint stdio stdlib stdnoreturn string strings tgmath threads time uchar wchar wctype
    arpa/inet dirent dlfcn fcntl fnmatch ftw getopt glob libgen link malloc netdb netinet/in netinet/tcp poll pthread
    pwd regex sched semaphore spawn sys/epoll sys/eventfd sys/file sys/inotify sys/ioctl sys/mman sys/mount sys/param
    sys/auxv sys/pidfd sys/poll sys/prctl sys/random sys/resource sys/select sys/sendfile sys/signalfd sys/socket sys/stat
    sys/statfs sys/statvfs sys/syscall sys/sysinfo sys/time sys/timerfd sys/types sys/uio sys/un sys/utsname sys/vfs
    sys/wait syscall termios ucontext unistd utime linux/futex linux/limits linux/mempolicy linux/memfd
    cpuid sanitizer/asan_interface sanitizer/tsan_interface sanitizer/lsan_interface emmintrin immintrin omp x86intrin xmmintrin pmmintrin arm_neon""".split()
)


def read_rules(source=ROOT / "src"):
    layers, public, vendor, rooms, narrow = {}, {}, {}, {}, {}
    for line in (source / "LAYERS").read_text().splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        subject, _, rest = line.partition(":")
        kind, _, name = subject.rpartition(" ")
        target = {"": layers, "header": public, "vendor": vendor, "rooms": rooms, "narrow": narrow}[kind]
        target[name.strip()] = rest.split()
    return layers, public, vendor, rooms, narrow


def check_file(path, layer, rules):
    layers, public, vendor, _, narrow = rules
    allowed = {layer, "base", *layers[layer]}
    relative = path.relative_to(ROOT)
    inside = str(relative.parent).removeprefix("src/")
    few = narrow.get(inside)
    text = path.read_text()
    for match in INCLUDE.finditer(text):
        line = text.count("\n", 0, match.start(2)) + 1
        name = match.group(2)
        folder = name.split("/")[0]
        problem = None
        if match.group(1) == '"' and few is not None:
            if name not in few and not name.startswith(inside + "/"):
                problem = f"{inside} may not include '{name}', but its own files and {' '.join(few)}"
        elif match.group(1) == '"' and folder == "fsdp":
            owner = public.get(name[5:])
            if owner is None:
                problem = f"'{name}' has no line in src/LAYERS"
            elif owner[0] not in allowed:
                problem = f"layer '{layer}' may not include '{name}' of layer '{owner[0]}'"
        elif match.group(1) == '"' and folder in layers and "/" in name:
            if relative.parts[0] == "include":
                problem = f"a public header may not include the internal '{name}'"
            elif folder not in allowed:
                problem = f"layer '{layer}' may not include '{name}'"
        elif name in vendor:
            if not any(inside == place or inside.startswith(place + "/") for place in vendor[name]):
                problem = f"'{name}' may be included only in {' '.join(vendor[name])}"
        elif name.removesuffix(".h") not in SYSTEM:
            problem = f"'{name}' is neither \"layer/file.h\" nor a known system or vendor header"
        if problem:
            yield f"{relative}:{line}: {problem}"


def check_vendors(vendor):
    """A folder that may include a vendor's header does so."""
    for header, places in vendor.items():
        for place in places:
            files = (path for path in (ROOT / "src" / place).rglob("*") if path.suffix in {".c", ".h", ".cu", ".cuh"})
            if not any(f"#include <{header}>" in path.read_text() for path in files):
                yield f"src/LAYERS: '{header}' may be included in {place}, where no file does"


def main():
    rules = read_rules()
    layers, public = rules[:2]
    problems, count = [], 0
    for path in sorted(path for path in (ROOT / "src").rglob("*") if path.suffix in {".c", ".h", ".cu", ".cuh"}):
        layer = path.relative_to(ROOT).parts[1]
        count += 1
        if layer not in layers:
            problems.append(f"{path.relative_to(ROOT)}: folder '{layer}' has no line in src/LAYERS")
        else:
            problems += check_file(path, layer, rules)
    for path in sorted((ROOT / "include/fsdp").glob("*.h")):
        count += 1
        if path.name not in public:
            problems.append(f"{path.relative_to(ROOT)}: has no line in src/LAYERS")
        else:
            problems += check_file(path, public[path.name][0], rules)
    problems += check_vendors(rules[2])
    print("\n".join(problems) if problems else f"layers: ok ({count} files)")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
