// The four pictures of the Compare panel. Each draws into what is left of the window.
#pragma once

#include "viewer/panels/panels.h"

namespace blockscope {

void draw_compared_heads(PanelContext& context);    ///< layer x head: A, B, B - A
void draw_compared_steps(PanelContext& context);    ///< over steps: both, and B - A
void draw_compared_tokens(PanelContext& context);   ///< where the tokens of a sequence part
void draw_compared_queries(PanelContext& context);  ///< the five stages of query statistics

}  // namespace blockscope
