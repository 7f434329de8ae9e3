#include "cli/doctor/system_files.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <regex>
#include <sstream>

#include "core/concat.h"
#include "core/error.h"

namespace halflife::cli::doctor {
namespace {

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::vector<std::string_view> Words(std::string_view line) {
  std::vector<std::string_view> words = Split(line, ' ');
  std::erase(words, "");
  return words;
}

std::string_view Trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1);
}

template <typename Number>
std::optional<Number> ParseNumber(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Decodes the octal escapes of mountinfo: \040 is a space, \134 a backslash.
std::string Unescaped(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    int code = 0;
    if (text[i] == '\\' && i + 3 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 4, code, 8).ptr ==
            text.data() + i + 4) {
      plain += static_cast<char>(code);
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

bool IsBelow(const std::string& path, const std::string& folder) {
  if (folder == "/") return path.starts_with("/");
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

}  // namespace

std::optional<uint64_t> ParseLimit(std::string_view limits, std::string_view row) {
  for (const std::string_view line : Split(limits, '\n')) {
    if (!line.starts_with(row)) continue;
    const std::vector<std::string_view> words = Words(line.substr(row.size()));
    if (words.empty()) continue;
    return words[0] == "unlimited" ? kUnlimited : ParseNumber<uint64_t>(words[0]);
  }
  return std::nullopt;
}

std::string ParseField(std::string_view text, std::string_view key) {
  for (const std::string_view line : Split(text, '\n')) {
    const size_t colon = line.find(':');
    if (colon != std::string_view::npos && Trimmed(line.substr(0, colon)) == key)
      return std::string(Trimmed(line.substr(colon + 1)));
  }
  return "";
}

std::vector<int> ParseCpuList(std::string_view list) {
  constexpr int kMaxCpus = 1 << 16;
  std::vector<int> cpus;
  for (const std::string_view range : Split(Trimmed(list), ',')) {
    const size_t dash = range.find('-');
    const std::optional<int> first = ParseNumber<int>(range.substr(0, dash));
    const std::optional<int> last =
        dash == std::string_view::npos ? first : ParseNumber<int>(range.substr(dash + 1));
    if (!first || !last || *first < 0 || *last >= kMaxCpus) continue;
    for (int cpu = *first; cpu <= *last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::optional<double> ParseCpuMax(std::string_view cpu_max) {
  const std::string_view line = cpu_max.substr(0, cpu_max.find('\n'));
  const std::vector<std::string_view> words = Words(line);
  if (words.size() != 2) return std::nullopt;
  const std::optional<int64_t> quota = ParseNumber<int64_t>(words[0]),
                               period = ParseNumber<int64_t>(words[1]);
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

std::string ParseCgroupPath(std::string_view cgroup, std::string_view controller) {
  for (const std::string_view line : Split(cgroup, '\n')) {
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const bool match = controller.empty()
                           ? controllers.empty()
                           : std::ranges::count(Split(controllers, ','), controller) > 0;
    if (match) return std::string(line.substr(second + 1));
  }
  return "";
}

std::optional<Mount> FindMount(std::string_view mountinfo, const std::string& path) {
  std::optional<Mount> best;
  for (const std::string_view line : Split(mountinfo, '\n')) {
    // 36 35 98:0 /root /point rw,noatime shared:1 - type source super-options
    const std::vector<std::string_view> words = Words(line);
    size_t dash = 6;
    while (dash < words.size() && words[dash] != "-") ++dash;
    if (dash + 3 >= words.size()) continue;
    const std::string point = Unescaped(words[4]);
    // If several file systems are mounted at one point, the last one is on top.
    if (!IsBelow(path, point) || (best && point.size() < best->point.size())) continue;
    best = Mount{point, std::string(words[dash + 1]),
                 std::string(words[5]) + "," + std::string(words[dash + 3])};
  }
  return best;
}

std::string FindMapped(std::string_view maps, std::string_view prefix) {
  for (const std::string_view line : Split(maps, '\n')) {
    const size_t slash = line.find('/');
    if (slash == std::string_view::npos) continue;
    const std::string_view file = line.substr(slash);
    if (file.substr(file.rfind('/') + 1).starts_with(prefix)) return std::string(file);
  }
  return "";
}

std::optional<std::string> ParseBinding(std::string_view report) {
  constexpr std::string_view kBound = "rank 0 bound to ";
  for (const std::string_view line : Split(report, '\n')) {
    if (line.find("rank 0 is not bound") != std::string_view::npos) return "";
    const size_t at = line.find(kBound);
    if (at == std::string_view::npos) continue;
    const std::string_view cores = line.substr(at + kBound.size());
    return std::string(cores.substr(0, cores.find(": ")));
  }
  return std::nullopt;
}

std::string ParseVersion(std::string_view text) {
  static const std::regex dotted(R"(\d+\.\d+(\.\d+)*)");
  const std::string copy(text);
  std::smatch match;
  return std::regex_search(copy, match, dotted) ? match[0].str() : "";
}

bool CoversGpu(std::string_view architectures, int major, int minor) {
  for (const std::string_view text : Split(architectures, ',')) {
    std::string_view number = text.substr(0, text.find('-'));
    const bool is_virtual = !text.ends_with("-real"), only_own_kind = number.ends_with("a");
    if (only_own_kind) number.remove_suffix(1);
    const std::optional<int> version = ParseNumber<int>(number);
    if (!version) return !text.empty();  // "native", "all"
    const int built_major = *version / 10, built_minor = *version % 10;
    if (built_major == major && built_minor == minor) return true;
    if (only_own_kind) continue;
    if (built_major == major && built_minor < minor) return true;
    if (is_virtual && *version <= 10 * major + minor) return true;
  }
  return false;
}

std::string ArchitectureFor(int major, int minor) {
  return Concat(major, minor, major == 9 && minor == 0 ? "a-real" : "-real");
}

std::optional<GpuProblem> FindGpuProblem(std::string_view architectures, int major, int minor) {
  if (major < 8)  // no asynchronous copies, and no products of bf16
    return GpuProblem{"halflife needs compute capability 8.0 or higher",
                      "use another GPU, or the CPU: train.device \"cpu\" or --device cpu"};
  if (CoversGpu(architectures, major, minor)) return std::nullopt;
  return GpuProblem{
      Concat("this build supports only ", architectures),
      Concat("cmake --preset cuda -DCMAKE_CUDA_ARCHITECTURES=", ArchitectureFor(major, minor),
             " && cmake --build --preset cuda --target halflife")};
}

std::filesystem::path FindProgram(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::filesystem::path candidate = std::filesystem::path(folder) / name;
    std::error_code ignored;
    if (std::filesystem::is_regular_file(candidate, ignored) &&
        ::access(candidate.c_str(), X_OK) == 0) {
      return candidate;
    }
  }
  return {};
}

CommandOutput RunTool(const char* command_line) {
  const std::string line = Concat("exec 2>&1 </dev/null; timeout -k 1 15 ", command_line);
  std::FILE* const pipe = ::popen(line.c_str(), "re");
  HL_CHECK_AS(ExitCode::kEnvironment, pipe != nullptr, "cannot start a shell for '", command_line,
              "': ", internal::ErrnoText(errno));
  CommandOutput output;
  char buffer[4096];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    output.text.append(buffer, n);
  }
  const int status = ::pclose(pipe);
  output.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return output;
}

}  // namespace halflife::cli::doctor
