// Parses and checks a safetensors header. The SAX parser accepts only the allowed structure. It
// detects repeated keys, and a hostile header of 100 MB needs no more memory than its text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "decode_record/base/error.h"
#include "probe/checkpoint/safetensors.h"

namespace blockscope {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxHeader = 100'000'000;  // the official crate's limit
constexpr std::size_t kMaxRank = 32;               // more than any tensor library allows
constexpr std::size_t kLengthBytes = 8;
constexpr std::string_view kAdvice = "HINT: the file is damaged; fetch it again";

struct DtypeRow {
  std::string_view name;
  TensorDtype dtype;
  std::size_t size;
};
constexpr std::array<DtypeRow, 10> kDtypes = {{{"F64", TensorDtype::kF64, 8},
                                               {"F32", TensorDtype::kF32, 4},
                                               {"F16", TensorDtype::kF16, 2},
                                               {"BF16", TensorDtype::kBF16, 2},
                                               {"I64", TensorDtype::kI64, 8},
                                               {"I32", TensorDtype::kI32, 4},
                                               {"I16", TensorDtype::kI16, 2},
                                               {"I8", TensorDtype::kI8, 1},
                                               {"U8", TensorDtype::kU8, 1},
                                               {"BOOL", TensorDtype::kBool, 1}}};

const DtypeRow& dtype_row(TensorDtype dtype) {
  for (const DtypeRow& row : kDtypes) {
    if (row.dtype == dtype) return row;
  }
  throw CheckpointError("unknown tensor dtype");
}

std::string excerpt(const std::string& text) {
  return text.size() <= 120 ? text : text.substr(0, 120) + "...";
}

/// Builds the tensor list while the parser reads the text; `number_*`, `string`, ... are callbacks.
class HeaderHandler : public nlohmann::json_sax<json> {
 public:
  HeaderHandler(std::string where, SafetensorsHeader& header)
      : where_(std::move(where)), header_(header) {}

  bool start_object(std::size_t) override {
    if (depth_ == 0 || (depth_ == 1 && !in_list_)) {
      if (depth_ == 1) start_entry();
      ++depth_;
      return true;
    }
    fail("a string, number or list", "an object");
  }

  bool end_object() override {
    --depth_;
    if (depth_ == 1 && !in_metadata_) finish_entry();
    return true;
  }

  bool key(string_t& name) override {
    if (depth_ == 1) {
      name_ = name;
      if (!names_.insert(name).second) fail("every tensor name once", "it twice");
      in_metadata_ = name == "__metadata__";
      fields_.clear();
    } else if (!fields_.insert(name).second) {
      fail("every key once", fmt::format("\"{}\" twice", excerpt(name)));
    }
    field_ = name;
    return true;
  }

  bool string(string_t& text) override {
    if (depth_ == 2 && in_metadata_) {
      header_.metadata[field_] = text;
      return true;
    }
    if (depth_ != 2 || field_ != "dtype" || in_list_) fail("a tensor entry", "a string");
    for (const DtypeRow& row : kDtypes) {
      if (row.name != text) continue;
      tensor_.dtype = row.dtype;
      return true;
    }
    fail("a dtype of F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL", "\"" + excerpt(text) + "\"");
  }

  bool start_array(std::size_t) override {
    const bool known = field_ == "shape" || field_ == "data_offsets";
    if (depth_ != 2 || in_metadata_ || in_list_ || !known) fail("a tensor entry", "a list");
    in_list_ = true;
    list_.clear();
    return true;
  }

  bool end_array() override {
    in_list_ = false;
    if (field_ == "shape") {
      if (list_.size() > kMaxRank) {
        fail(fmt::format("a shape of at most {} dimensions", kMaxRank),
             std::to_string(list_.size()));
      }
      tensor_.shape.assign(list_.begin(), list_.end());
    } else {
      if (list_.size() != 2) fail("two data_offsets", std::to_string(list_.size()));
      begin_ = static_cast<std::uint64_t>(list_[0]);
      end_ = static_cast<std::uint64_t>(list_[1]);
    }
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_list_) fail("a tensor entry", "a number");
    if (value > kMaxNumber || list_.size() > kMaxRank) {
      fail("at most 32 numbers below 2^62", std::to_string(value));
    }
    list_.push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool number_integer(number_integer_t value) override {
    fail("a number from 0", std::to_string(value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    fail("an integer", excerpt(text));
  }
  bool null() override { fail("a tensor entry", "null"); }
  bool boolean(bool) override { fail("a tensor entry", "true or false"); }
  bool binary(binary_t&) override { fail("a tensor entry", "binary"); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    throw CheckpointError(fmt::format(
        "{}: expected a JSON header, got text that is not JSON at byte {}. HINT: the file is not "
        "safetensors, or it is damaged",
        where_, kLengthBytes + position));
  }

 private:
  static constexpr std::uint64_t kMaxNumber = std::uint64_t{1} << 62;

  [[noreturn]] void fail(const std::string& expected, const std::string& got) const {
    throw CheckpointError(fmt::format("{}: tensor \"{}\": expected {}, got {}. {}", where_,
                                      excerpt(name_), expected, got, kAdvice));
  }

  void start_entry() {
    tensor_ = TensorInfo{};
    tensor_.name = name_;
  }

  void finish_entry() {
    if (fields_ != std::set<std::string>{"data_offsets", "dtype", "shape"}) {
      fail("exactly the keys dtype, shape and data_offsets",
           std::to_string(fields_.size()) + " keys");
    }
    if (end_ < begin_) fail("data_offsets in order", fmt::format("[{}, {}]", begin_, end_));
    std::uint64_t bytes = tensor_dtype_size(tensor_.dtype);
    for (const std::int64_t extent : tensor_.shape) {
      if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes)) {
        fail("a shape whose size fits 64 bits", shape_text(tensor_.shape));
      }
    }
    if (bytes != end_ - begin_) {
      fail(fmt::format("{} bytes for {} {}", bytes, tensor_dtype_name(tensor_.dtype),
                       shape_text(tensor_.shape)),
           fmt::format("data_offsets [{}, {}]", begin_, end_));
    }
    tensor_.begin = begin_;
    tensor_.size = bytes;
    header_.tensors.push_back(std::move(tensor_));
  }

  std::string where_;
  SafetensorsHeader& header_;
  int depth_ = 0;  // 1: tensor names, 2: inside an entry
  bool in_list_ = false;
  bool in_metadata_ = false;
  std::string name_;
  std::string field_;
  std::set<std::string> names_;
  std::set<std::string> fields_;
  std::vector<std::int64_t> list_;
  TensorInfo tensor_;
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
};

/// The tensors must cover the data section from its first to its last byte, without hole or
/// overlap.
void check_coverage(SafetensorsHeader& header, std::uint64_t data_size, const std::string& where) {
  std::stable_sort(
      header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
        return std::pair(a.begin, a.begin + a.size) < std::pair(b.begin, b.begin + b.size);
      });
  std::uint64_t expected = 0;
  for (const TensorInfo& tensor : header.tensors) {
    if (tensor.begin != expected) {
      throw CheckpointError(
          fmt::format("{}: tensor \"{}\": expected data_offsets to begin at {} (end of the tensor "
                      "before it), got {}: the data {}. {}",
                      where, excerpt(tensor.name), expected, tensor.begin,
                      tensor.begin < expected ? "overlaps" : "has a hole", kAdvice));
    }
    expected = tensor.begin + tensor.size;
    if (expected > data_size) {
      throw CheckpointError(
          fmt::format("{}: tensor \"{}\": expected its data to end within the {} data bytes of the "
                      "file, got {}. "
                      "HINT: the file is cut off; fetch it again",
                      where, excerpt(tensor.name), data_size, expected));
    }
  }
  if (expected != data_size) {
    throw CheckpointError(
        fmt::format("{}: expected {} data bytes, got {}: bytes no tensor owns. {}", where, expected,
                    data_size, kAdvice));
  }
}

}  // namespace

std::string_view tensor_dtype_name(TensorDtype dtype) { return dtype_row(dtype).name; }

std::size_t tensor_dtype_size(TensorDtype dtype) { return dtype_row(dtype).size; }

std::string shape_text(const std::vector<std::int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

SafetensorsHeader parse_safetensors_header(std::string_view bytes, std::uint64_t file_size,
                                           const std::string& where) {
  if (file_size < kLengthBytes || bytes.size() < kLengthBytes) {
    throw CheckpointError(fmt::format(
        "{}: expected at least 8 bytes, got {}. HINT: the file is cut off; fetch it again", where,
        std::min<std::uint64_t>(file_size, bytes.size())));
  }
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  const std::uint64_t available = std::min<std::uint64_t>(file_size, bytes.size()) - kLengthBytes;
  if (length > kMaxHeader || length > available) {
    throw CheckpointError(
        fmt::format("{}: expected a header of at most {} bytes, got a header length of {}. HINT: "
                    "the file is not "
                    "safetensors, or it is cut off",
                    where, std::min(kMaxHeader, available), length));
  }
  SafetensorsHeader header;
  header.data_begin = kLengthBytes + length;
  const std::string_view text = bytes.substr(kLengthBytes, length);
  if (text.empty() || text.front() != '{') {
    throw CheckpointError(fmt::format(
        "{}: expected the header to begin with '{{'. HINT: the file is not safetensors", where));
  }
  // A NUL byte ends the text for the parser, so it would never read what follows.
  const std::size_t nul = text.find('\0');
  if (nul != std::string_view::npos) {
    throw CheckpointError(fmt::format("{}: expected a JSON header, got a NUL byte at byte {}. {}",
                                      where, kLengthBytes + nul + 1, kAdvice));
  }
  HeaderHandler handler(where, header);
  json::sax_parse(text, &handler);
  check_coverage(header, file_size - header.data_begin, where);
  return header;
}

}  // namespace blockscope
