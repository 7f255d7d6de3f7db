// A policy as text: the same options and the same refusals as on the command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "decode_record/base/error.h"
#include "probe/run/policy_flags.h"

namespace blockscope {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(PolicyText, OptionsAreThoseOfTheCommandLine) {
  EXPECT_EQ(policy_from_text("exact"), PolicyFlags{});
  const PolicyFlags quest = policy_from_text("quest,k=64,page=8,exact-layers=2");
  EXPECT_EQ(quest.policy, "quest");
  EXPECT_EQ(quest.k, 64);
  EXPECT_EQ(quest.page, 8);
  EXPECT_EQ(quest.exact_layers, 2);
  EXPECT_FALSE(quest.per_block);
  const PolicyFlags sparsed = policy_from_text("sparsed+flashblock,density=0.3,per-block");
  EXPECT_EQ(sparsed.density, 0.3);
  EXPECT_TRUE(sparsed.per_block);
  const PolicyFlags reuse = policy_from_text("flashblock,tau=3,reuse=a folder/b=c.json");
  EXPECT_EQ(reuse.tau, 3);
  EXPECT_EQ(reuse.reuse_file, "a folder/b=c.json");
  EXPECT_EQ(policy_from_text("random,k=2,policy-seed=18446744073709551615").policy_seed,
            UINT64_MAX);
}

TEST(PolicyText, IsReadAsItIsWritten) {
  for (const char* text :
       {"exact", "flashblock", "flashblock,tau=3,reuse=r.json", "mage,k=5",
        "mage+flashblock,density=0.3", "sparsed,k=5,exact-layers=2,per-block", "quest,k=64,page=16",
        "random,k=1,policy-seed=7", "recent,density=0.1234567890123"}) {
    EXPECT_EQ(policy_text(policy_from_text(text)), text);
  }
  EXPECT_EQ(policy_text(policy_from_text("quest,k=64")), "quest,k=64,page=16");
}

std::string refusal(const std::string& text) {
  try {
    policy_from_text(text);
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("policy '" + text + "'"));
    return error.what();
  }
  ADD_FAILURE() << "taken: " << text;
  return "";
}

TEST(PolicyText, RefusesWhatTheOptionsWould) {
  EXPECT_THAT(refusal("Mage,k=4"), HasSubstr("expected one of exact, flashblock"));
  EXPECT_THAT(refusal(""), HasSubstr("--policy: expected a value"));
  EXPECT_THAT(refusal("k=4"), HasSubstr("got 'k=4'"));
  EXPECT_THAT(refusal("mage"), HasSubstr("expected either --k or --density, got none"));
  EXPECT_THAT(refusal("mage,k=4,density=0.5"), HasSubstr("got both"));
  EXPECT_THAT(refusal("mage,k=0"),
              HasSubstr("--k: expected a whole number of at least 1, got '0'"));
  EXPECT_THAT(refusal("mage,k=-1"), HasSubstr("got '-1'"));
  EXPECT_THAT(refusal("mage,density=1.5"), HasSubstr("--density: expected a number"));
  EXPECT_THAT(refusal("mage,k="), HasSubstr("--k: expected a value, got an empty one"));
  EXPECT_THAT(refusal("mage,k=4,k=5"), HasSubstr("--k: expected once, got it 2 times"));
  EXPECT_THAT(refusal("mage,k=4,page=8"), HasSubstr("--page: does nothing without --policy quest"));
  EXPECT_THAT(refusal("sparsed+flashblock,k=4"), HasSubstr("expected --per-block"));
  EXPECT_THAT(refusal("exact,tau=2"), HasSubstr("--tau: does nothing"));
}

TEST(PolicyText, RefusesWhatIsNoOption) {
  for (const char* text : {"mage,k=4,shadow", "mage,,k=4", "mage,k=4,", "mage, k=4", "mage,--k=4",
                           "mage,K=4", "mage,k=4,help", "mage,policy=quest,k=4", "mage,4"}) {
    EXPECT_THAT(refusal(text), AllOf(HasSubstr("options such as k=64"), HasSubstr("got '")))
        << text;
  }
}

}  // namespace
}  // namespace blockscope
