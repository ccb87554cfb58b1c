"""Writes the folder pieces: small tokenizers of SentencePiece, the same as tokenizer.json in the ways of Llama 2,
Mistral, Gemma and T5, and expected.json: texts, their ids as the packages sentencepiece and tokenizers give them, what
the ids are decoded to, and for tokenizer.json the bytes of the text that each id stands for.

    python tests/numbers/pieces.py

The tokenizers are trained on docs/train.md as it was then: run the script again only to replace all files."""

import json
import pathlib

import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

HERE = pathlib.Path(__file__).parent
OUT = HERE / "pieces"
CORPUS = HERE.parent.parent / "docs" / "train.md"
MARK = "\u2581"
TEXTS = [
    "", " ", "a", " a", "a ", "  a  b ", "The training of a model.", "training training  training\n\ntraining",
    "Zürich, naïve café — “quotes”", "日本語テキスト 混ぜ English", "🙂🙂 emoji🙂x", "tab\there\r\nline", "<s>not a token</s>",
    "\u2581mark\u2581 in text", "x" * 70, "learning_rate=3e-4 steps 1000000", "e\u0301 combining", "ﬁ ligature ½",
    "<tool>call</tool> then <tool>", "<0x41> literal", "q\u00a0nbsp\u3000wide", " leading and trailing  ",
    "\n", "a\n b\n  c", "the the the theory", "😀", "\u0e01\u0e02 Thai",
]


def train(name, **options):
    sentencepiece.SentencePieceTrainer.train(
        input=str(CORPUS), model_prefix=str(OUT / name), vocab_size=options.pop("vocab_size"), minloglevel=2,
        hard_vocab_limit=False, num_threads=1, **options)
    (OUT / f"{name}.vocab").unlink()
    return sentencepiece.SentencePieceProcessor(model_file=str(OUT / f"{name}.model"))


def bpe_model(processor):
    """Merges as Hugging Face's converter of Llama makes them: all ways to make a piece, in the order of its id."""
    vocabulary = {processor.id_to_piece(i): i for i in range(processor.get_piece_size())}
    plain = {piece for piece, i in vocabulary.items() if not (
        processor.is_byte(i) or processor.is_control(i) or processor.is_unknown(i))}
    merges = []
    for piece in sorted(plain, key=lambda p: (-processor.get_score(vocabulary[p]), vocabulary[p])):
        ways = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        ways = [way for way in ways if way[0] in plain and way[1] in plain]
        merges += sorted(ways, key=lambda way: (vocabulary[way[0]], vocabulary[way[1]]))
    return models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)


def save(tokenizer, name):
    specials = [AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")]
    tokenizer.add_special_tokens(specials)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    text = json.loads(tokenizer.to_str())
    (OUT / f"{name}.json").write_text(json.dumps(text, ensure_ascii=False, separators=(",", ":")))
    return tokenizer


def spaces(*after):
    return decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), *after])


def places(tokenizer, text):
    """Begin and end of each token, in bytes."""
    offsets = tokenizer.encode(text, add_special_tokens=False).offsets
    return [len(text[:at].encode()) for token in offsets for at in token]


OUT.mkdir(exist_ok=True)
rules = OUT / "rules.tsv"
rules.write_text("FB01\t66 69\nBD\t31 2F 32\n65 301\tE9\nA0\t20\n3000\t20\n9\t20\nD\t\n41 42\t43\n")
bpe = train("bpe", vocab_size=420, model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
            remove_extra_whitespaces=False, split_digits=True, character_coverage=0.999)
across = train("across", vocab_size=420, model_type="bpe", byte_fallback=True, normalization_rule_name="identity",
               remove_extra_whitespaces=False, split_by_whitespace=False, add_dummy_prefix=False,
               user_defined_symbols=["<tool>", MARK * 2])
unigram = train("unigram", vocab_size=400, model_type="unigram", byte_fallback=True,
                normalization_rule_tsv=str(rules), user_defined_symbols=["<tool>"])
plain = train("plain", vocab_size=150, model_type="unigram", normalization_rule_name="identity",
              character_coverage=0.98)
rules.unlink()

llama = Tokenizer(bpe_model(bpe))
llama.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
llama.decoder = spaces(decoders.Strip(" ", 1, 0))
save(llama, "llama")
mistral = Tokenizer(bpe_model(bpe))
mistral.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme="first", split=False)
mistral.decoder = spaces(decoders.Strip(" ", 1, 0))
save(mistral, "mistral")
gemma = Tokenizer(bpe_model(across))
gemma.normalizer = normalizers.Replace(" ", MARK)
gemma.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
gemma.decoder = spaces()
save(gemma, "gemma")
pieces = [(plain.id_to_piece(i), plain.get_score(i)) for i in range(plain.get_piece_size())]
t5 = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
t5.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme="always", split=True)
t5.decoder = decoders.Metaspace(MARK, prepend_scheme="always", split=True)
save(t5, "t5")

expected = {"texts": TEXTS}
for name, processor in [("bpe", bpe), ("across", across), ("unigram", unigram), ("plain", plain)]:
    ids = [processor.encode(text) for text in TEXTS]
    expected[f"{name}.model"] = {"ids": ids, "decoded": [processor.decode(one) for one in ids]}
for name, tokenizer in [("llama", llama), ("mistral", mistral), ("gemma", gemma), ("t5", t5)]:
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    expected[f"{name}.json"] = {"ids": ids, "decoded": [tokenizer.decode(one, skip_special_tokens=False) for one in ids],
                                "places": [places(tokenizer, text) for text in TEXTS],
                                "with_specials": tokenizer.encode(TEXTS[6]).ids}
(OUT / "expected.json").write_text(json.dumps(expected, ensure_ascii=False, separators=(",", ":")))
