# The test of the 16-lane types: one program that holds every instruction set's, each compiled with its own flags.
edge_rt_compile_per_isa(simd_test "${CMAKE_CURRENT_SOURCE_DIR}/simd_functions.cc")
add_executable(simd_test simd_main.cc simd_nibbles.cc simd_norms.cc ${simd_test_isa_objects})
target_link_libraries(simd_test PRIVATE edge_rt_base edge_rt_kernels)
add_test(NAME simd_test COMMAND simd_test)
