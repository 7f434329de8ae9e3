#include "ckpt/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/files.h"

namespace halflife::ckpt {

static_assert(std::endian::native == std::endian::little, "shards store memory as it lies");

namespace {

struct DTypeRow {
  const char* name;
  uint64_t size;
};
constexpr DTypeRow kDTypes[] = {{"F32", 4}, {"F64", 8}, {"BF16", 2}, {"F16", 2},
                                {"I32", 4}, {"I64", 8}, {"U8", 1},   {"BOOL", 1}};

}  // namespace

uint64_t SizeOf(StoredDType dtype) { return kDTypes[static_cast<int>(dtype)].size; }
const char* Name(StoredDType dtype) { return kDTypes[static_cast<int>(dtype)].name; }

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

int64_t CountElements(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(count, dim, &count)) return -1;
  }
  int64_t bytes = 0;
  return __builtin_mul_overflow(count, 8, &bytes) ? -1 : count;
}

namespace safetensors {
namespace {

using Json = nlohmann::json;

std::string Quoted(const std::string& text) { return Json(text).dump(); }

// Parses text and reports a key that occurs twice in one object, which the JSON library accepts.
Json ParseStrictly(std::string_view text, std::string* duplicate) {
  std::vector<std::set<std::string>> open_objects;
  const auto note = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == Json::parse_event_t::object_end) open_objects.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!open_objects.back().insert(key).second) *duplicate = key;
    }
    return true;
  };
  return Json::parse(text, note, /*allow_exceptions=*/false);
}

class HeaderParser {
 public:
  HeaderParser(const std::string& file_name, ExitCode code) : file_(file_name), code_(code) {}

  Header Parse(std::string_view head, uint64_t file_bytes) const {
    const std::string_view text = JsonText(head, file_bytes);
    std::string duplicate;
    const Json json = ParseStrictly(text, &duplicate);
    Check(!json.is_discarded() && json.is_object(), "header is not a JSON object in UTF-8");
    Check(duplicate.empty(), "key '", duplicate, "' appears twice");
    Header header;
    header.data_offset = 8 + text.size();
    for (const auto& [key, value] : json.items()) {
      if (key == "__metadata__") {
        header.metadata = ParseMetadata(value);
      } else {
        header.entries.push_back(ParseEntry(key, value));
      }
    }
    std::stable_sort(header.entries.begin(), header.entries.end(),
                     [](const Entry& a, const Entry& b) {
                       return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                     });
    CheckDense(header.entries, file_bytes - header.data_offset);
    return header;
  }

 private:
  template <typename... Pieces>
  void Check(bool good, const Pieces&... pieces) const {
    HL_CHECK_AS(code_, good, file_, ": not a sound safetensors file: ", pieces...);
  }

  std::string_view JsonText(std::string_view head, uint64_t file_bytes) const {
    uint64_t length = 0;
    Check(head.size() >= 8, "shorter than 8 bytes");
    Check(!head.starts_with("version "),
          "it is a pointer of Git LFS. Download the file itself, for example with `git lfs pull`.");
    std::memcpy(&length, head.data(), 8);
    Check(length <= kMaxHeaderBytes, "header of ", length, " bytes, the limit is ",
          kMaxHeaderBytes);
    Check(length >= 2 && 8 + length <= file_bytes && 8 + length <= head.size(), "header of ",
          length, " bytes in a file of ", file_bytes);
    Check(head[8] == '{', "header does not begin with '{'");
    return head.substr(8, length);
  }

  std::map<std::string, std::string> ParseMetadata(const Json& value) const {
    Check(value.is_object(), "__metadata__ is not an object");
    std::map<std::string, std::string> metadata;
    for (const auto& [key, text] : value.items()) {
      Check(text.is_string(), "metadata '", key, "' is not a string");
      metadata[key] = text.get<std::string>();
    }
    return metadata;
  }

  Entry ParseEntry(const std::string& name, const Json& value) const {
    Check(value.is_object() && value.size() == 3 && value.contains("dtype") &&
              value.contains("shape") && value.contains("data_offsets"),
          "entry '", name, "' must have exactly dtype, shape and data_offsets");
    Entry entry{.name = name, .dtype = ParseDType(name, value["dtype"])};
    Check(value["shape"].is_array(), "entry '", name, "': shape is not a list");
    for (const Json& dim : value["shape"]) {
      Check(dim.is_number_unsigned() && dim.get<uint64_t>() <= INT64_MAX, "entry '", name,
            "': shape is not a list of sizes");
      entry.shape.push_back(dim.get<int64_t>());
    }
    const Json& offsets = value["data_offsets"];
    Check(offsets.is_array() && offsets.size() == 2 && offsets[0].is_number_unsigned() &&
              offsets[1].is_number_unsigned(),
          "entry '", name, "': data_offsets is not a pair of sizes");
    entry.begin = offsets[0].get<uint64_t>();
    entry.end = offsets[1].get<uint64_t>();
    const int64_t count = CountElements(entry.shape);
    Check(count >= 0, "entry '", name, "': its shape overflows");
    Check(entry.begin <= entry.end && entry.end - entry.begin == count * SizeOf(entry.dtype),
          "entry '", name, "': bytes [", entry.begin, ", ", entry.end, ") for ", count,
          " elements of ", Name(entry.dtype));
    return entry;
  }

  StoredDType ParseDType(const std::string& name, const Json& value) const {
    Check(value.is_string(), "entry '", name, "': dtype is not a string");
    const auto text = value.get<std::string>();
    for (size_t i = 0; i < std::size(kDTypes); ++i) {
      if (text == kDTypes[i].name) return static_cast<StoredDType>(i);
    }
    HL_FAIL(code_, file_, ": entry '", name, "' has dtype '", text,
            "'; supported: F32 F64 BF16 F16 I32 I64 U8 BOOL");
  }

  void CheckDense(const std::vector<Entry>& entries, uint64_t data_bytes) const {
    uint64_t at = 0;
    for (const Entry& entry : entries) {
      Check(entry.begin == at, "entry '", entry.name, "' begins at ", entry.begin,
            " where the data before it ends at ", at);
      at = entry.end;
    }
    Check(at == data_bytes, "entries end at ", at, ", the data at ", data_bytes);
  }

  const std::string& file_;
  ExitCode code_;
};

}  // namespace

std::string BuildHeader(const std::vector<Entry>& entries,
                        const std::map<std::string, std::string>& metadata, uint64_t alignment) {
  std::string json = "{\"__metadata__\":" + Json(metadata).dump();
  for (const Entry& entry : entries) {
    json += Concat(",", Quoted(entry.name), ":{\"dtype\":\"", Name(entry.dtype),
                   "\",\"shape\":", Json(entry.shape).dump(), ",\"data_offsets\":[", entry.begin,
                   ",", entry.end, "]}");
  }
  json += "}";
  json.append((alignment - (8 + json.size()) % alignment) % alignment, ' ');
  HL_CHECK(json.size() <= kMaxHeaderBytes, "safetensors header of ", json.size(), " bytes");
  const uint64_t length = json.size();
  std::string head(8, '\0');
  std::memcpy(head.data(), &length, 8);
  return head + json;
}

Header ParseHeader(std::string_view head, uint64_t file_bytes, const std::string& file_name,
                   ExitCode code) {
  return HeaderParser(file_name, code).Parse(head, file_bytes);
}

Header ReadHeader(const std::filesystem::path& path, ExitCode code) {
  // Opening a FIFO would wait for its writer. For files the flag has no effect.
  const Fd fd = OpenFile(path, O_RDONLY | O_NONBLOCK, code);
  struct stat info {};
  HL_CHECK_AS(code, ::fstat(fd.get(), &info) == 0 && S_ISREG(info.st_mode), "cannot read ",
              path.string(), ": it is not a regular file");
  const auto file_bytes = static_cast<uint64_t>(info.st_size);
  std::string head(std::min<uint64_t>(file_bytes, 8), '\0');
  const auto fill = [&](size_t from) {
    while (from < head.size()) {
      const ssize_t n =
          ::pread(fd.get(), head.data() + from, head.size() - from, static_cast<off_t>(from));
      if (n < 0 && errno == EINTR) continue;
      HL_CHECK_AS(code, n > 0, "cannot read ", path.string(), ": ",
                  n == 0 ? std::string("it ends early") : internal::ErrnoText(errno));
      from += static_cast<size_t>(n);
    }
  };
  fill(0);
  if (head.size() == 8) {
    uint64_t length = 0;
    std::memcpy(&length, head.data(), 8);
    if (length <= kMaxHeaderBytes) {
      head.resize(std::min(8 + length, file_bytes));
      fill(8);
    }
  }
  return ParseHeader(head, file_bytes, path.filename().string(), code);
}

}  // namespace safetensors
}  // namespace halflife::ckpt
