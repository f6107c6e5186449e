"""How Gloo's ranks find each other: by a server that answers its world only, with a few requests of each rank."""

from __future__ import annotations

from hvdtrain.horovod_build.edit import Edit

TOKEN_VARIABLE = "HVDTRAIN_RENDEZVOUS_TOKEN"
AT_ONCE_VARIABLE = "HVDTRAIN_RENDEZVOUS_AT_ONCE"

_AT_ONCE = (
    "Each rank asked for the list of addresses of each other one, twice, and for half of the host names, which nothing uses, each "
    "time over a connection of its own: 256 ranks make 163,000 requests for one mesh, and rank 0 sends them 4.5 GB. Where the "
    "server is said to know how, a rank is now handed all that is meant for it at once."
)

MEETING: tuple[Edit, ...] = (
    Edit(
        path="horovod/common/gloo/http_store.h",
        old="""    url_prefix_ +=
        "http://" + server_ip + ":" + std::to_string(port) + "/" + scope + "/";
""",
        new=f"""    url_prefix_ += "http://" + server_ip + ":" + std::to_string(port) + "/";
    const char* token = std::getenv("{TOKEN_VARIABLE}");
    if (token != nullptr && *token != '\\0') {{
      url_prefix_ += std::string(token) + "/";
    }}
    url_prefix_ += scope + "/";
""",
        why=(
            "The rendezvous server answers whoever can reach its port. With a secret as the first path component, "
            "which only the ranks of one world are given, it can refuse everybody else."
        ),
        feature="rendezvous_token",
    ),
    Edit(
        path="horovod/common/gloo/http_store.h",
        old='#include "HTTPRequest.hpp"\n',
        new='#include <cstdlib>\n#include <string>\n\n#include "HTTPRequest.hpp"\n',
        why="std::getenv for the token.",
    ),
    Edit(
        path="horovod/common/gloo/http_store.h",
        old="  std::vector<char> get(const std::string& key) override;\n",
        new=f"""  std::vector<char> get(const std::string& key) override;

  std::vector<char>
  addresses_for(int rank, int size,
                const std::chrono::milliseconds& timeout) override {{
    if (size < 2 || std::getenv("{AT_ONCE_VARIABLE}") == nullptr) {{
      return {{}};
    }}
    const auto key =
        "addresses/" + std::to_string(rank) + "/" + std::to_string(size);
    wait({{key}}, timeout);
    return get(key);
  }}
""",
        why=_AT_ONCE,
        feature="meets_at_once",
    ),
    Edit(
        path="third_party/gloo/gloo/rendezvous/store.h",
        old="  virtual std::vector<char> get(const std::string& key) = 0;\n",
        new="""  virtual std::vector<char> get(const std::string& key) = 0;

  // The addresses that all other ranks have set for `rank`, in order of ranks,
  // once all have; empty from a store that only knows whole values.
  virtual std::vector<char> addresses_for(
      int /*rank*/,
      int /*size*/,
      const std::chrono::milliseconds& /*timeout*/) {
    return {};
  }
""",
        why=_AT_ONCE,
    ),
    Edit(
        path="third_party/gloo/gloo/rendezvous/context.cc",
        old="""  // Connect every pair
  for (int i = 0; i < size; i++) {
    if (i == rank) {
      continue;
    }

    // Wait for address""",
        new="""  const auto mine = store.addresses_for(rank, size, getTimeout());

  // Connect every pair
  for (int i = 0; i < size; i++) {
    if (i == rank) {
      continue;
    }

    if (!mine.empty()) {
      const auto bytes = mine.size() / (size - 1);
      const auto first = mine.begin() + (i < rank ? i : i - 1) * bytes;
      transportContext->getPair(i)->connect(
          std::vector<char>(first, first + bytes));
      continue;
    }

    // Wait for address""",
        why=_AT_ONCE,
    ),
    Edit(
        path="third_party/gloo/gloo/rendezvous/context.cc",
        old="""  // Get Hostname using syscall
  char hostname[HOSTNAME_MAX_SIZE]; // NOLINT
  int rv = gethostname(hostname, HOSTNAME_MAX_SIZE);
  if (rv != 0) {
    throw std::system_error(errno, std::system_category());
  }

  auto localHostName = std::string(hostname);
  // Add global rank <> hostname pair to the Store. This store is then passed
  // to Gloo when connectFullMesh is called, where Gloo uses the global rank <>
  // hostname mapping to compute local ranks.
  std::string localKey("rank_" + std::to_string(rank));
  const std::vector<char> value(localHostName.begin(), localHostName.end());
  store.set(localKey, value);

  for (int i = 0; i < size; i++) {
    if (i == rank) {
      break;
    }

    std::string key("rank_" + std::to_string(i));
    auto val = store.get(key);
    auto hostName = std::string((const char*)val.data(), val.size());

    if (hostName == localHostName) {
      localRank++;
    }
  }

""",
        new="",
        why=_AT_ONCE,
    ),
)
