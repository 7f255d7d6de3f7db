# Warnings for our own C++ code; third-party headers are SYSTEM and stay silent.
add_library(blockscope_warnings INTERFACE)
target_compile_options(blockscope_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wconversion;-Wsign-conversion>)
if(WITH_WERROR)
  target_compile_options(blockscope_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
