# Fails where this CMake is older than what the top CMakeLists.txt asks for.
cmake_minimum_required(VERSION 3.25)
