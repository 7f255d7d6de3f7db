// Safetensors: files of the official package are read byte for byte, and every way a header can lie
// is refused with a message that names file and tensor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "probe/checkpoint/safetensors.h"
#include "tests/probe/checkpoint/checkpoint_fixture.h"

namespace blockscope {
namespace {

using test::checkpoint_error;
using test::kData;
using test::TempFolder;
using testing::HasSubstr;

std::string with_length(const std::string& header, const std::string& data) {
  const std::uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + data;
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors_header(file, file.size(), "x.safetensors");
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

std::string error_of(const std::string& header, std::size_t data_size) {
  return checkpoint_error([&] { parse(with_length(header, std::string(data_size, 'x'))); });
}

TEST(Safetensors, ReadsEveryDtypeTheOfficialPackageWrote) {
  const auto file = SafetensorsFile::open(kData / "dtypes.safetensors");
  const auto expected = nlohmann::json::parse(test::read_text(kData / "dtypes.json"));
  ASSERT_EQ(file.tensors().size(), expected.size());
  for (const auto& [name, item] : expected.items()) {
    const TensorInfo* tensor = file.find(name);
    ASSERT_NE(tensor, nullptr) << name;
    EXPECT_EQ(tensor->shape, item["shape"].get<std::vector<std::int64_t>>()) << name;
    const auto bytes = item["bytes"].get<std::vector<std::uint8_t>>();
    ASSERT_EQ(tensor->size, bytes.size()) << name;
    EXPECT_EQ(std::memcmp(tensor->data, bytes.data(), bytes.size()), 0) << name;
    if (name.rfind("t.", 0) == 0) {
      EXPECT_EQ(tensor_dtype_name(tensor->dtype), name.substr(2));
    }
  }
  EXPECT_EQ(file.metadata().at("note"), "é");
  EXPECT_EQ(file.find("t.F33"), nullptr);
}

TEST(Safetensors, PointersSurviveAMove) {
  auto file = SafetensorsFile::open(kData / "dtypes.safetensors");
  const std::byte* data = file.find("t.F32")->data;
  const SafetensorsFile moved = std::move(file);
  ASSERT_EQ(moved.find("t.F32")->data, data);
  float value = 0.0F;
  std::memcpy(&value, data + 5 * sizeof(float), sizeof(float));
  EXPECT_EQ(value, 4.0F);
}

TEST(Safetensors, AHeaderLongerThanTheFileIsRefused) {
  std::string file = with_length("{}", "");
  file[0] = 3;
  EXPECT_THAT(checkpoint_error([&] { parse(file); }), HasSubstr("header length of 3"));
  std::memset(file.data(), 0xff, 8);
  EXPECT_THAT(checkpoint_error([&] { parse(file); }), HasSubstr("18446744073709551615"));
  EXPECT_THAT(checkpoint_error([&] { parse("1234567"); }), HasSubstr("at least 8 bytes, got 7"));
  EXPECT_THAT(checkpoint_error([&] { parse(""); }), HasSubstr("got 0"));
}

TEST(Safetensors, AHeaderAboveTheOfficialLimitIsRefusedEvenIfTheFileIsAsLong) {
  const std::string file = with_length("{}" + std::string(8, ' '), "");
  std::string lying = file;
  const std::uint64_t length = 100'000'001;
  std::memcpy(lying.data(), &length, 8);
  EXPECT_THAT(checkpoint_error([&] {
                parse_safetensors_header(lying, std::uint64_t{1} << 40, "x.safetensors");
              }),
              HasSubstr("header length of 100000001"));
}

TEST(Safetensors, EveryTruncationOfAGoodFileIsRefused) {
  const std::string good = test::read_text(kData / "dtypes.safetensors");
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(parse(good.substr(0, size)), CheckpointError) << size;
  }
  EXPECT_NO_THROW(parse(good));
  EXPECT_THAT(checkpoint_error([&] { parse(good + "x"); }), HasSubstr("bytes no tensor owns"));
}

TEST(Safetensors, OverlapsHolesAndOffsetsBeyondTheFileAreRefused) {
  const auto two = [](const std::string& a, const std::string& b) {
    return "{" + entry("a", "U8", "[4]", a) + "," + entry("b", "U8", "[4]", b) + "}";
  };
  EXPECT_NO_THROW(parse(with_length(two("[4,8]", "[0,4]"), std::string(8, 'x'))));
  EXPECT_THAT(error_of(two("[0,4]", "[2,6]"), 6), HasSubstr("tensor \"b\""));
  EXPECT_THAT(error_of(two("[0,4]", "[2,6]"), 6), HasSubstr("overlaps"));
  EXPECT_THAT(error_of(two("[0,4]", "[0,4]"), 4), HasSubstr("overlaps"));
  EXPECT_THAT(error_of(two("[0,4]", "[5,9]"), 9), HasSubstr("hole"));
  EXPECT_THAT(error_of(two("[0,4]", "[4,8]"), 7), HasSubstr("within the 7 data bytes"));
  EXPECT_THAT(error_of(two("[0,4]", "[8,4]"), 8), HasSubstr("in order"));
}

TEST(Safetensors, ShapesThatDoNotFitTheirBytesAreRefused) {
  const auto one = [](const std::string& shape, const std::string& offsets) {
    return "{" + entry("w", "F32", shape, offsets) + "}";
  };
  EXPECT_NO_THROW(parse(with_length(one("[]", "[0,4]"), "1234")));
  EXPECT_NO_THROW(parse(with_length(one("[0,9]", "[0,0]"), "")));
  EXPECT_THAT(error_of(one("[2]", "[0,4]"), 4), HasSubstr("8 bytes for F32 [2]"));
  EXPECT_THAT(error_of(one("[4294967296,4294967296]", "[0,4]"), 4), HasSubstr("64 bits"));
  // 2^62 * 4 bytes wraps to 0: the product must be checked, not compared after the wrap.
  EXPECT_THAT(error_of(one("[4611686018427387904]", "[0,0]"), 0), HasSubstr("64 bits"));
  EXPECT_THAT(error_of(one("[18446744073709551615]", "[0,4]"), 4), HasSubstr("2^62"));
  EXPECT_THAT(error_of(one("[-1]", "[0,4]"), 4), HasSubstr("from 0"));
  EXPECT_THAT(error_of(one("[1.0]", "[0,4]"), 4), HasSubstr("an integer"));
  EXPECT_THAT(error_of(one("[1]", "[0,4,8]"), 4), HasSubstr("two data_offsets"));
}

TEST(Safetensors, HeadersOfAnotherStructureAreRefused) {
  const std::string good = entry("w", "F32", "[1]", "[0,4]");
  const std::vector<std::string> bad = {
      "",
      " {}",
      "[]",
      "{",
      "{}}",
      "{\"w\":1}",
      "{\"w\":null}",
      "{\"w\":[]}",
      "{\"w\":{}}",
      "{" + good + "," + good + "}",
      "{" + entry("w", "F33", "[1]", "[0,4]") + "}",
      "{\"w\":{\"dtype\":\"F32\",\"shape\":[1]}}",
      "{\"w\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
      "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"more\":[1]}}",
      "{\"w\":{\"dtype\":{},\"shape\":[1],\"data_offsets\":[0,4]}}",
      "{\"w\":{\"dtype\":\"F32\",\"shape\":[[1]],\"data_offsets\":[0,4]}}",
      "{\"w\":{\"dtype\":\"F32\",\"shape\":[{}],\"data_offsets\":[0,4]}}",
      "{\"w\":{\"dtype\":\"F32\",\"shape\":\"1\",\"data_offsets\":[0,4]}}",
      "{\"__metadata__\":{\"a\":1}," + good + "}",
      "{\"__metadata__\":[]," + good + "}",
      "{\"w\xff\":{}}",
  };
  for (const std::string& header : bad) {
    EXPECT_THROW(parse(with_length(header, "1234")), CheckpointError) << header;
  }
  EXPECT_NO_THROW(parse(with_length("{" + good + "}   ", "1234")));
}

TEST(Safetensors, WhatTheWriterWroteIsReadBack) {
  const TempFolder folder;
  const auto path = folder.path() / "model.safetensors";
  const std::vector<float> a = {1.5F, -2.0F, 3.25F};
  const std::vector<std::uint16_t> b = {0x3f80, 0xbf80};
  SafetensorsWriter writer(path,
                           {{"a", TensorDtype::kF32, {3}}, {"b", TensorDtype::kBF16, {2, 1}}});
  writer.write("a", a.data(), a.size() * sizeof(float));
  writer.write("b", b.data(), b.size() * sizeof(std::uint16_t));
  EXPECT_FALSE(std::filesystem::exists(path)) << "the name must appear with the whole file only";
  writer.finish();

  const auto file = SafetensorsFile::open(path);
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(std::memcmp(file.find("a")->data, a.data(), 12), 0);
  EXPECT_EQ(file.find("b")->shape, (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(std::memcmp(file.find("b")->data, b.data(), 4), 0);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(file.find("a")->data) % 8, 0u);
}

TEST(Safetensors, AnUnfinishedWriterLeavesNothingBehind) {
  const TempFolder folder;
  const auto path = folder.path() / "model.safetensors";
  test::write_text(path, "the old file");
  {
    SafetensorsWriter writer(path, {{"a", TensorDtype::kU8, {4}}});
    EXPECT_THAT(checkpoint_error([&] { writer.write("b", "1234", 4); }), HasSubstr("\"a\" next"));
    EXPECT_THAT(checkpoint_error([&] { writer.write("a", "123", 3); }), HasSubstr("4 bytes"));
    EXPECT_THAT(checkpoint_error([&] { writer.finish(); }), HasSubstr("1 tensors"));
  }
  EXPECT_EQ(test::read_text(path), "the old file");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(Safetensors, AMissingFolderOrFileIsNamed) {
  try {
    SafetensorsWriter("/nonexistent/m.safetensors", {});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("/nonexistent/m.safetensors: can't write here"));
  }
  EXPECT_THAT(checkpoint_error([] { SafetensorsFile::open("/nonexistent/m.safetensors"); }),
              HasSubstr("No such file"));
  EXPECT_THAT(checkpoint_error([] { SafetensorsFile::open(kData); }), HasSubstr("regular file"));
}

}  // namespace
}  // namespace blockscope
