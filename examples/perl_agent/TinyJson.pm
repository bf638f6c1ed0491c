# Enough JSON for the protocol, where no module for it is installed. With one: `use JSON::PP`.
package TinyJson;
use strict;
use warnings;
use Exporter qw(import);
our @EXPORT_OK = qw(read_json write_json);

my %ESCAPES = (b => "\b", f => "\f", n => "\n", r => "\r", t => "\t");

sub read_json {
    my ($text) = @_;
    utf8::decode($text);
    my $value = _value(\$text);
    $text =~ /\G\s*\z/gc or die 'more than one value at ' . pos($text) . "\n";
    return $value;
}

sub _value {
    my ($text) = @_;
    if ($$text =~ /\G\s*\{/gc) {
        my %object;
        until ($$text =~ /\G\s*\}/gc) {
            $$text =~ /\G\s*,/gc if %object;
            my $key = _value($text);
            $$text =~ /\G\s*:/gc or die 'no colon at ' . pos($$text) . "\n";
            $object{$key} = _value($text);
        }
        return \%object;
    }
    if ($$text =~ /\G\s*\[/gc) {
        my @list;
        until ($$text =~ /\G\s*\]/gc) {
            $$text =~ /\G\s*,/gc if @list;
            push @list, _value($text);
        }
        return \@list;
    }
    return _string($1) if $$text =~ /\G\s*"((?:[^"\\]|\\.)*)"/gc;
    return $1 + 0 if $$text =~ /\G\s*(-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)/gc;
    return $1 eq 'true' ? 1 : $1 eq 'false' ? 0 : undef if $$text =~ /\G\s*(true|false|null)/gc;
    die 'no JSON at ' . (pos($$text) // 0) . "\n";
}

sub _string {
    my ($raw) = @_;
    # Beyond the basic plane a character is written as a pair.
    $raw =~ s/\\u(d[89ab]..)\\u(d[c-f]..)/chr(0x10000 + (hex($1) - 0xD800) * 0x400 + hex($2) - 0xDC00)/gie;
    $raw =~ s/\\(?:u([0-9a-fA-F]{4})|(.))/defined $1 ? chr hex $1 : $ESCAPES{$2} \/\/ $2/ge;
    return $raw;
}

sub write_json {
    my $text = _written($_[0]);
    utf8::encode($text);
    return $text;
}

sub _written {
    my ($value) = @_;
    return 'null' unless defined $value;
    if (ref $value eq 'HASH') {
        return '{' . join(',', map { _quoted($_) . ':' . _written($value->{$_}) } sort keys %$value) . '}';
    }
    return '[' . join(',', map { _written($_) } @$value) . ']' if ref $value eq 'ARRAY';
    return $value if $value =~ /^-?(?:0|[1-9]\d*)(?:\.\d+)?$/;
    return _quoted($value);
}

sub _quoted {
    my ($text) = @_;
    $text =~ s/(["\\\x00-\x1f])/sprintf '\\u%04x', ord $1/ge;
    return qq("$text");
}

1;
