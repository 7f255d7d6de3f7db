// A tiny random model, three prompts of different lengths, and verify over them.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "probe/verify/verify_run.h"
#include "probe/verify/verify_settings.h"
#include "tests/support/tiny_model.h"

namespace blockscope::testing {

inline HeadMatrix<bool> every(bool reuse) {
  return {std::vector<bool>(4, reuse), std::vector<bool>(4, reuse)};
}

class VerifyRunTest : public ::testing::Test {
 protected:
  VerifyRunTest() {
    model_.config = tiny_config();
    model_.model = std::make_shared<BlockDiffusionModel>(tiny_model(7));
    model_.dtype = at::kFloat;
    decode_ = tiny_options();
    decode_.unmasking.denoising_steps = 3;  // 2, 1, 1 tokens: M = 2, then 1
    const int64_t lengths[][2] = {{9, 14}, {20, 7}, {6, 11}};
    for (int64_t i = 0; i < 3; ++i) {
      RunPrompt prompt;
      prompt.request = tiny_request(i, lengths[i][0], lengths[i][1]);
      prompts_.push_back(prompt);
    }
  }

  VerifyResult verify(const std::vector<PolicySetting>& settings, int64_t batch_size = 2,
                      int64_t repeats = 1, const PolicyOptions& reference = {}) {
    const VerifyInput input{model_, decode_, prompts_, nullptr, batch_size, repeats};
    return verify_policies(input, policy_setting(reference, model_), settings,
                           [](double, const std::string&) {});
  }
  PolicySetting setting(int64_t tau, HeadMatrix<bool> mask) const {
    PolicyOptions flags;
    flags.policy = "flashblock";
    flags.tau = tau;
    PolicySetting made = policy_setting(flags, model_);
    made.reuse->reuse = {{}, {std::move(mask)}};
    return made;
  }
  PolicySetting setting(const std::string& text) const {
    return policy_setting(read_policy(text), model_);
  }

  LoadedModel model_;
  DecodeOptions decode_;
  std::vector<RunPrompt> prompts_;
};

}  // namespace blockscope::testing
