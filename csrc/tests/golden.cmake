# Golden bits: every instruction set must compute what golden_bits.txt has on record. After a change of a kernel that is
# meant to change results, write the file anew: golden scalar > golden_bits.txt
add_executable(golden golden_main.cc golden_bits.cc golden_inputs.cc golden_run.cc golden_ops.cc golden_head.cc golden_experts.cc golden_states.cc
                      golden_layer.cc golden_node.cc fake_ort.cc fake_memory.cc ../register.cc)
target_link_libraries(golden PRIVATE edge_rt_base edge_rt_kernels)
foreach(isa IN LISTS isas)
  add_test(NAME golden_${isa} COMMAND golden ${isa} "${CMAKE_CURRENT_SOURCE_DIR}/golden_bits.txt")
  set_tests_properties(golden_${isa} PROPERTIES SKIP_RETURN_CODE 77 COST 20)
endforeach()
