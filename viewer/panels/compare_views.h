// The state of the Compare panel, and its four pictures. Each fills the rest of the window.
#pragma once

#include <cstddef>

#include "viewer/model/comparison.h"
#include "viewer/panels/panels.h"

namespace blockscope {

struct CompareState {
  int mode = 0;  ///< 0: heads, 1: steps, 2: tokens, 3: query statistics
  std::size_t metric = 0;
  CompareScope scope = CompareScope::matched;
};

void draw_compared_heads(PanelContext& context);    ///< layer x head: A, B, B - A
void draw_compared_steps(PanelContext& context);    ///< over steps: both, and B - A
void draw_compared_tokens(PanelContext& context);   ///< where the tokens of a sequence differ
void draw_compared_queries(PanelContext& context);  ///< the five stages of query statistics

}  // namespace blockscope
