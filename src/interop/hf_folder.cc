#include "interop/hf_folder.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/json_text.h"

namespace halflife::interop {
namespace {

namespace fs = std::filesystem;
using ckpt::StoredDType;

constexpr int64_t kReadElements = 1 << 20;  // Elements per read.

// Python writes infinities and NaN as the bare words Infinity, -Infinity and NaN, which are not
// JSON. Replaces each word outside of strings by the tag of transformers:
// {"__float__": "Infinity"}.
std::string WithTaggedFloats(const std::string& text) {
  std::string tagged;
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    std::string_view word;
    for (const std::string_view candidate : {"-Infinity", "Infinity", "NaN"})
      if (!in_string && word.empty() && text.compare(i, candidate.size(), candidate) == 0)
        word = candidate;
    if (!word.empty()) {
      tagged.append(R"({"__float__": ")").append(word).append(R"("})");
      i += word.size();
      continue;
    }
    const bool escaped = in_string && text[i] == '\\' && i + 1 < text.size();
    if (text[i] == '"') in_string = !in_string;
    tagged.append(text, i, escaped ? 2 : 1);
    i += escaped ? 2 : 1;
  }
  return tagged;
}

nlohmann::json ReadJson(const fs::path& path) {
  const std::string text = ReadJsonText(path);
  const auto parsed = [](const std::string& json) {
    return nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  };
  nlohmann::json json = parsed(text);
  if (json.is_discarded()) json = parsed(WithTaggedFloats(text));
  HL_CHECK_AS(ExitCode::kData, json.is_object(), path.string(), ": not a JSON object");
  return json;
}

// Returns true if the name is a plain file name, which cannot leave the folder.
bool IsPlainName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

template <typename Element>
void ToFp32(const char* bytes, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    Element element;
    std::memcpy(&element, bytes + i * static_cast<int64_t>(sizeof(Element)), sizeof(Element));
    out[i] = static_cast<float>(element);
  }
}

using Conversion = void (*)(const char*, int64_t, float*);
Conversion ConversionFrom(StoredDType dtype) {
  switch (dtype) {
    case StoredDType::kF32:
      return &ToFp32<float>;
    case StoredDType::kF64:
      return &ToFp32<double>;
    case StoredDType::kBF16:
      return &ToFp32<c10::BFloat16>;
    case StoredDType::kF16:
      return &ToFp32<c10::Half>;
    default:
      return nullptr;
  }
}

}  // namespace

bool HfFolder::IsOne(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path / "config.json", error);
}

HfFolder HfFolder::Open(const fs::path& path) {
  HL_CHECK_AS(ExitCode::kData, IsOne(path), "no config.json in ", path.string(),
              ". Use a folder that transformers saved.");
  HfFolder folder;
  folder.path_ = path;
  folder.config_ = std::make_shared<const nlohmann::json>(ReadJson(path / "config.json"));
  // Before the files are read, because they may have types that halflife does not know.
  const auto quantization = folder.config_->find("quantization_config");
  HL_CHECK_AS(ExitCode::kData, quantization == folder.config_->end() || quantization->is_null(),
              (path / "config.json").string(), ": ", kQuantizedWeights);
  const fs::path index = path / "model.safetensors.index.json";
  // Takes precedence, as in transformers.
  const bool is_whole = fs::exists(path / "model.safetensors");
  if (!is_whole && fs::exists(index)) {
    folder.ReadIndex(index);
    return folder;
  }
  HL_CHECK_AS(
      ExitCode::kData, is_whole, path.string(),
      " holds neither model.safetensors nor model.safetensors.index.json",
      fs::exists(path / "pytorch_model.bin") || fs::exists(path / "pytorch_model.bin.index.json")
          ? ". pytorch_model*.bin are pickles, which can run code when they are read. Load "
            "the model with transformers and save it again with save_pretrained."
          : ". Download the safetensors files of the model.");
  folder.AddFile("model.safetensors");
  return folder;
}

void HfFolder::AddFile(const std::string& name) {
  const fs::path path = path_ / name;
  const ckpt::safetensors::Header header = ckpt::safetensors::ReadHeader(path, ExitCode::kData);
  const int file = static_cast<int>(files_.size());
  files_.push_back(OpenFile(path, O_RDONLY | O_CLOEXEC, ExitCode::kData));
  file_names_.push_back(name);
  for (const ckpt::safetensors::Entry& entry : header.entries) {
    const bool added =
        tensors_
            .emplace(entry.name, HfTensor{.name = entry.name,
                                          .dtype = entry.dtype,
                                          .shape = entry.shape,
                                          .file = file,
                                          .offset = header.data_offset + entry.begin})
            .second;
    HL_CHECK_AS(ExitCode::kData, added, path.string(), ": tensor ", entry.name,
                " is also in another file of the folder");
  }
}

// The index and the files must agree. A tensor that only one of them contains means that the folder
// is damaged.
void HfFolder::ReadIndex(const fs::path& index) {
  const nlohmann::json json = ReadJson(index);
  const auto map = json.find("weight_map");
  HL_CHECK_AS(ExitCode::kData, map != json.end() && map->is_object(), index.string(),
              ": no object 'weight_map'");
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    HL_CHECK_AS(ExitCode::kData, file.is_string() && IsPlainName(file.get<std::string>()),
                index.string(), ": tensor ", tensor, " is in ", file.dump().substr(0, 80),
                ". Only plain names of files in the same folder are supported.");
    names.insert(file.get<std::string>());
  }
  for (const std::string& name : names) AddFile(name);
  for (const auto& [name, tensor] : tensors_) {
    const auto entry = map->find(name);
    HL_CHECK_AS(ExitCode::kData, entry != map->end(), index.string(), " does not name tensor ",
                name, " of ", file_names_[tensor.file]);
    HL_CHECK_AS(ExitCode::kData, *entry == file_names_[tensor.file], index.string(),
                " says that tensor ", name, " is in ", entry->get<std::string>(), ", but it is in ",
                file_names_[tensor.file]);
  }
  for (const auto& [name, file] : map->items()) {
    HL_CHECK_AS(ExitCode::kData, tensors_.contains(name), index.string(), " names tensor ", name,
                ", but ", file.get<std::string>(), " does not hold it");
  }
}

const HfTensor* HfFolder::Find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

void HfFolder::Read(const HfTensor& tensor, int64_t begin, int64_t end, float* out) const {
  const fs::path path = path_ / file_names_[tensor.file];
  const Conversion convert = ConversionFrom(tensor.dtype);
  HL_CHECK_AS(ExitCode::kData, convert != nullptr, path.string(), ": tensor ", tensor.name, " is ",
              ckpt::Name(tensor.dtype), ". Only F64, F32, BF16 and F16 are supported.");
  HL_CHECK(0 <= begin && begin <= end && end <= tensor.count(), "range [", begin, ", ", end,
           ") is outside tensor ", tensor.name);
  const auto width = static_cast<int64_t>(ckpt::SizeOf(tensor.dtype));
  std::vector<char> piece(static_cast<size_t>(std::min(end - begin, kReadElements) * width));
  while (begin < end) {
    const int64_t count = std::min(end - begin, kReadElements);
    const int64_t wanted = count * width;
    for (int64_t done = 0; done < wanted;) {
      const ssize_t got = ::pread(files_[tensor.file].get(), piece.data() + done,
                                  static_cast<size_t>(wanted - done),
                                  static_cast<off_t>(tensor.offset) + begin * width + done);
      HL_CHECK_AS(ExitCode::kData, got > 0, path.string(), ": cannot read tensor ", tensor.name,
                  got == 0 ? ": the file became shorter" : "");
      done += got;
    }
    convert(piece.data(), count, out);
    begin += count, out += count;
  }
}

}  // namespace halflife::interop
