# Warnings for our own C++ code; third-party headers are SYSTEM and stay silent.
add_library(blockscope_warnings INTERFACE)
target_compile_options(blockscope_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Wconversion;-Wsign-conversion>)
# GCC 12 reports -Wrestrict inside std::string's own operator+; 13 does not.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(blockscope_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(WITH_WERROR)
  target_compile_options(blockscope_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
