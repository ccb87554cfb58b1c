# fsdp_batches(most name...): sets in each list sources_<name> what to compile in place of its sources: up to `most` as one
# (batches.py), but for those with options of their own. To start Python takes three times as long as to look at a list:
# one call is for many.

option(FSDP_BATCHES "compile many files as one, which is faster from nothing, and slower after a change" OFF)
if(FSDP_BATCHES AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-Wno-shadow)  # a function of one file is not in the way of another's parameter, which is called, too
endif()

function(fsdp_batches most)
  set(asked)
  foreach(name IN LISTS ARGN)
    set(alone)
    set(together)
    foreach(source IN LISTS sources_${name})
      get_source_file_property(options ${source} COMPILE_OPTIONS)
      get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
      if(options OR definitions)
        list(APPEND alone ${source})
      else()
        list(APPEND together ${source})
      endif()
    endforeach()
    set(made_${name} ${alone})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${together})  # a new name may need other batches
    list(TRANSFORM together PREPEND ${name}=)
    list(APPEND asked ${together})
  endforeach()
  execute_process(COMMAND python3 -I -S ${PROJECT_SOURCE_DIR}/cmake/batches.py ${PROJECT_BINARY_DIR}/batches ${most} ${asked}
                  OUTPUT_VARIABLE lines OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE "\n" ";" lines "${lines}")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "^([a-z]+)=(.*)$" matched "${line}")
    list(APPEND made_${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
  endforeach()
  foreach(name IN LISTS ARGN)
    set(sources_${name} ${made_${name}} PARENT_SCOPE)
  endforeach()
endfunction()
