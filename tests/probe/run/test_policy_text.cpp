// A policy as text: the same options and the same refusals as on the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "decode_record/base/error.h"
#include "probe/policies/policy_table.h"

namespace blockscope {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PolicyText, OptionsAreThoseOfTheCommandLine) {
  EXPECT_EQ(read_policy("exact"), PolicyOptions{});
  const PolicyOptions quest = read_policy("quest,k=64,page=8,exact_layers=2");
  EXPECT_EQ(quest.policy, "quest");
  EXPECT_EQ(quest.k, 64);
  EXPECT_EQ(quest.page, 8);
  EXPECT_EQ(quest.exact_layers, 2);
  EXPECT_FALSE(quest.per_block);
  const PolicyOptions sparsed = read_policy("sparsed+flashblock,density=0.3,per_block");
  EXPECT_EQ(sparsed.density, 0.3);
  EXPECT_TRUE(sparsed.per_block);
  const PolicyOptions reuse = read_policy("flashblock,tau=3,reuse=a folder/b=c.json");
  EXPECT_EQ(reuse.tau, 3);
  EXPECT_EQ(reuse.reuse_file, "a folder/b=c.json");
  EXPECT_EQ(read_policy("random,k=2,seed=18446744073709551615").seed, UINT64_MAX);
}

TEST(PolicyText, IsReadAsItIsWritten) {
  for (const char* text :
       {"exact", "flashblock", "flashblock,tau=3,reuse=r.json", "mage,k=5",
        "mage+flashblock,density=0.3", "sparsed,k=5,exact_layers=2,per_block", "quest,k=64,page=8",
        "random,k=1,seed=7", "recent,density=0.1234567890123"}) {
    EXPECT_EQ(policy_text(read_policy(text)), text);
  }
  EXPECT_EQ(policy_text(read_policy("quest,k=64,page=16")), "quest,k=64") << "page's default";
}

std::string refusal(const std::string& text) {
  try {
    read_policy(text);
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("policy '" + text + "'"));
    return error.what();
  }
  ADD_FAILURE() << "taken: " << text;
  return "";
}

TEST(PolicyText, RefusesWhatIsOutOfRangeMissingOrTooMuch) {
  EXPECT_THAT(refusal("Mage,k=4"), HasSubstr("expected exact, flashblock, mage, "));
  EXPECT_THAT(refusal(""), HasSubstr("expected a name, then options such as k=16"));
  EXPECT_THAT(refusal("k=4"), HasSubstr("got 'k=4'"));
  EXPECT_THAT(refusal("mage"), HasSubstr("expected either k or density, got none"));
  EXPECT_THAT(refusal("mage,k=4,density=0.5"), HasSubstr("got both"));
  EXPECT_THAT(refusal("mage,k=0"), HasSubstr("k: expected a whole number from 1, got '0'"));
  EXPECT_THAT(refusal("mage,k=-1"), HasSubstr("got '-1'"));
  EXPECT_THAT(refusal("mage,density=1.5"),
              HasSubstr("density: expected a number above 0, up to 1"));
  EXPECT_THAT(refusal("mage,k="), HasSubstr("k: expected a whole number from 1, got nothing"));
  EXPECT_THAT(refusal("mage,k"), HasSubstr("k: expected a whole number from 1, got nothing"));
  EXPECT_THAT(refusal("mage,k=4,k=5"), HasSubstr("expected k once, got it twice"));
  EXPECT_THAT(refusal("mage,k=4,page=8"),
              HasSubstr("expected k, density or exact_layers, got 'page'"));
  EXPECT_THAT(refusal("sparsed,k=4,per_block=1"), HasSubstr("per_block: expected no value"));
  EXPECT_THAT(refusal("sparsed+flashblock,k=4"), HasSubstr("expected per_block"));
  EXPECT_THAT(refusal("exact,tau=2"), HasSubstr("exact has no options, got 'tau'"));
}

TEST(PolicyText, RefusesWhatIsNoOption) {
  for (const char* text : {"mage,k=4,shadow", "mage, k=4", "mage,--k=4", "mage,K=4",
                           "mage,k=4,help", "mage,policy=quest,k=4", "mage,4"}) {
    EXPECT_THAT(refusal(text), AllOf(HasSubstr("expected k, density"), HasSubstr("got '"))) << text;
  }
  for (const char* text : {"mage,,k=4", "mage,k=4,", ",mage"}) {
    EXPECT_THAT(refusal(text), HasSubstr("got nothing")) << text;
  }
}

TEST(PolicyText, EveryExampleOfTheTableIsOne) {
  for (const PolicyEntry& entry : policy_table()) {
    EXPECT_EQ(read_policy(entry.example).policy, entry.name);
    EXPECT_FALSE(entry.meaning.empty());
    EXPECT_FALSE(entry.source.empty());
  }
}

TEST(ChoiceLists, BeginAnewAtEveryName) {
  EXPECT_THAT(
      split_choices("none,d2cache,current_k=8,as_released,dual", {"none", "dual", "d2cache"}),
      ElementsAre("none", "d2cache,current_k=8,as_released", "dual"));
}

}  // namespace
}  // namespace blockscope
