// What a page may send to `view --serve`, and who may be one.
#include <gmock/gmock.h>

#include "decode_record/base/error.h"
#include "viewer/model/selection_words.h"
#include "viewer/serve/page_access.h"
#include "viewer/serve/page_input.h"

namespace blockscope {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::ThrowsMessage;

const std::string kSecret(32, 'a');

std::string refused(const PageRequest& request, bool websocket = true) {
  return refusal(request, kSecret, {"hub.example.org"}, false, websocket);
}

TEST(PageAccess, LoopbackNamesAndNamedHostsPass) {
  for (const std::string host : {"localhost:8765", "127.0.0.1:1", "[::1]:80", "LOCALHOST",
                                 "hub.example.org", "hub.example.org:443"}) {
    EXPECT_THAT(refused({host, "http://" + host, kSecret}), IsEmpty()) << host;
    EXPECT_THAT(refused({host, "https://" + host, kSecret}), IsEmpty()) << host;
  }
}

TEST(PageAccess, OtherHostsAreRefused) {
  for (const std::string host : {"evil.example", "127.0.0.1.evil.example", "localhost.evil:8765",
                                 "", "evil@localhost", "xlocalhost"}) {
    EXPECT_THAT(refused({host, "http://" + host, kSecret}), HasSubstr("--host")) << host;
  }
  EXPECT_THAT(refusal({"gpu7:8765", "http://gpu7:8765", kSecret}, kSecret, {}, true, true),
              IsEmpty());
}

TEST(PageAccess, AWebSocketMustComeFromItsOwnPage) {
  for (const std::string origin : {"", "null", "http://evil.example", "http://localhost:1",
                                   "http://localhost:8765.evil.example"}) {
    EXPECT_THAT(refused({"localhost:8765", origin, kSecret}), HasSubstr("another page")) << origin;
  }
  EXPECT_THAT(refused({"localhost:8765", "", kSecret}, false), IsEmpty());
}

TEST(PageAccess, TheSecretIsNeeded) {
  for (const std::string& secret :
       {std::string(), std::string("a"), kSecret.substr(1) + "b", kSecret + "a"}) {
    EXPECT_THAT(refused({"localhost", "http://localhost", secret}), HasSubstr("key")) << secret;
    EXPECT_THAT(refused({"localhost", "", secret}, false), HasSubstr("key")) << secret;
  }
}

TEST(PageInput, EveryKindOfEventIsRead) {
  const auto inputs = read_events(
      R"([["s",800,600,2],["m",1.5,2],["b",2,1],["w",0,-1],["k","A",1],["x",1,0,1],["t","é"],["p","x"],)"
      R"(["f",0],["a",7],["l","step=2"]])");
  ASSERT_EQ(inputs.size(), 11U);
  EXPECT_EQ(std::get<PageSize>(inputs[0]).scale, 2.0F);
  EXPECT_EQ(std::get<PointerMove>(inputs[1]).x, 1.5F);
  EXPECT_EQ(std::get<PointerButton>(inputs[2]).button, 2);
  EXPECT_EQ(std::get<PointerWheel>(inputs[3]).y, -1.0F);
  EXPECT_EQ(std::get<KeyPress>(inputs[4]).name, "A");
  EXPECT_TRUE(std::get<Modifiers>(inputs[5]).alt);
  EXPECT_EQ(std::get<TypedText>(inputs[6]).text, "é");
  EXPECT_FALSE(std::get<PageFocus>(inputs[8]).focused);
  EXPECT_EQ(std::get<FrameShown>(inputs[9]).frame, 7U);
  EXPECT_EQ(std::get<LinkFollowed>(inputs[10]).link, "step=2");
}

TEST(PageInput, WhatNoPageSendsIsRefusedByName) {
  for (const char* message : {"",
                              "{}",
                              "[1]",
                              "[[]]",
                              R"([["z"]])",
                              R"([["s",1,2]])",
                              R"([["s",0,1,1]])",
                              R"([["s",9000,9000,1]])",
                              R"([["s",8000,8000,1]])",
                              R"([["s",3000,3000,2]])",
                              R"([["m","1",2]])",
                              R"([["m",1e30,2]])",
                              R"([["b",3,1]])",
                              R"([["b",0,2]])",
                              R"([["k",1,1]])",
                              R"([["a",-1]])",
                              R"([["a",1.5]])",
                              R"([["t",["x"]]])",
                              "\xff\xfe",
                              R"([["t","\ud800"]])"}) {
    EXPECT_THROW(read_events(message), Error) << message;
  }
  EXPECT_THAT([] { read_events(R"([["b",7,1]])"); },
              ThrowsMessage<Error>(HasSubstr(R"(["b",7,1])")));
  EXPECT_THROW(read_events(std::string(kMostEventBytes + 1, ' ')), Error);
  // Deep nesting must not use up the stack.
  EXPECT_THROW(read_events(std::string(60000, '[')), Error);
  EXPECT_THROW(read_events(std::string(30000, '[') + std::string(30000, ']')), Error);
}

TEST(PageInput, AFileHasANameWithoutAFolder) {
  const auto message = [](const std::string& name, const std::string& bytes) {
    return std::string{static_cast<char>(name.size()), '\0'} + name + bytes;
  };
  const FileGiven file = read_given_file(message("reuse.json", "{}"));
  EXPECT_EQ(file.name, "reuse.json");
  EXPECT_EQ(file.bytes, "{}");
  for (const std::string name : {"../x.json", "/etc/passwd", "..", ".", "a\nb", ""}) {
    EXPECT_THROW(read_given_file(message(name, "{}")), Error) << name;
  }
  EXPECT_THROW(read_given_file("\x05"), Error);
  EXPECT_THROW(read_given_file(std::string("\x05\x00"
                                           "ab",
                                           4)),
               Error);
}

TEST(SelectionWords, ALinkIsWhatSelectTakes) {
  for (const char* text :
       {"sequence=0,block=1,step=4,layer=3,head=2,token=5,panel=heatmap,trace=a.h5",
        "#sequence=0&block=1&step=4&layer=3&head=2&token=5&panel=heatmap&trace=a.h5"}) {
    const SelectionText wanted = parse_selection(text);
    EXPECT_EQ(wanted.sequence, 0);
    EXPECT_EQ(wanted.block, 1);
    EXPECT_EQ(wanted.step, 4);
    EXPECT_EQ(wanted.layer, 3);
    EXPECT_EQ(wanted.head, 2);
    EXPECT_EQ(wanted.token, 5);
    EXPECT_EQ(wanted.panel, "heatmap");
    EXPECT_EQ(wanted.trace, "a.h5");
  }
  EXPECT_FALSE(parse_selection("").block.has_value());
  EXPECT_THROW(parse_selection("step"), UsageError);
  EXPECT_THROW(parse_selection("step=4x"), UsageError);
  EXPECT_THROW(parse_selection("tail=1"), UsageError);
}

}  // namespace
}  // namespace blockscope
