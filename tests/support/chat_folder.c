#include "support/chat_folder.h"

#include "support/test.h"

const char chat_template_marked[] =
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}{% generation %}{{ "
    "m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}{{ '\\n' }}{% "
    "endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
const char chat_template_plain[] =
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}{% if "
    "add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

static char *tokenizer_json(void)
{
    static const char *const special[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    unsigned stand_in = 256;
    FILE *out = test_begin_text();

    fputs("{\"version\": \"1.0\", \"added_tokens\": [", out);
    for (int i = 0; i < 3; i++)
        fprintf(out,
                "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
                "\"normalized\": false, \"special\": true}",
                i ? ", " : "", i, special[i]);
    fputs("], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
          "\"trim_offsets\": true, \"use_regex\": true}, \"post_processor\": null, \"decoder\": {\"type\": "
          "\"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {",
          out);
    for (int i = 0; i < 3; i++)
        fprintf(out, "\"%s\": %d, ", special[i], i);
    for (unsigned byte = 0; byte < 256; byte++) {
        bool visible = (byte > ' ' && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);

        fprintf(out, "%s\"\\u%04x\": %u", byte ? ", " : "", visible ? byte : stand_in++, byte + 3);
    }
    fputs("}}}", out);
    return test_end_text(out);
}

void chat_folder_write(const char *folder, const char *chat_template)
{
    test_write_text(folder, "tokenizer.json", tokenizer_json());
    test_write_text(folder, "tokenizer_config.json",
                    "{\"eos_token\": \"<|im_end|>\", \"pad_token\": \"<|endoftext|>\"}");
    if (chat_template)
        test_write_text(folder, "chat_template.jinja", chat_template);
}
